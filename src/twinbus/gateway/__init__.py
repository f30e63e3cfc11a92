"""The gateway: a pair of namespaces behind one connection string, for any SDK (docs/gateway.md)."""

from __future__ import annotations

from twinbus.gateway.host import GatewayHost

__all__ = ["GatewayHost"]
