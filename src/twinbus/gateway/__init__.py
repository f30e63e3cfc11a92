"""The gateway: a pair of namespaces behind one connection string, for any SDK (SPEC 11)."""

from __future__ import annotations

from twinbus.gateway.host import GatewayHost

__all__ = ["GatewayHost"]
