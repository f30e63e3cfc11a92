"""Which namespaces and options a broker URL means.

    twinbus://eu   the pair `eu` of the settings file
    twinbus://     `primary` and `secondary` of the transport options, else of the environment

No key needs to stand in the URL: a side may name its source (sb://HOST?credential=default).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

from twinbus.errors import SettingsError
from twinbus.namespace.access import NamespaceAccess
from twinbus.options import SendAvailabilityOptions
from twinbus.settings.files import VARIABLE, no_file_text, read_settings, settings_place
from twinbus.settings.keys import EMBEDDED

SIDES: Final = ("primary", "secondary")
ATTEMPTS: Final = 3
"""A call that lasts a failover interval and this many attempts sees the failover and the divert."""

_ROUTE: Final = ("credential", "transport", "proxy", "endpoint")
_OPTIONS: Final = tuple(each.name for each in dataclasses.fields(SendAvailabilityOptions))


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Two namespaces, and how to send to them; it holds no open resource."""

    primary: NamespaceAccess
    secondary: NamespaceAccess
    options: SendAvailabilityOptions
    send_timeout_s: float
    create_queues: bool

    @property
    def key(self) -> str:
        """A text that is equal for equal settings: not every option can be hashed."""
        access = self.primary, self.secondary
        return repr((*map(dataclasses.astuple, access), self.options, self.create_queues))


def broker_settings(url: str, transport_options: Mapping[str, Any]) -> BrokerSettings:
    """Return the settings of a URL; SettingsError or ValueError, in one line, if it means none."""
    name = pair_name(url)
    given = {key: transport_options[key] for key in _OPTIONS if key in transport_options}
    sides, defaults = _named_pair(name) if name else (_given_sides(transport_options), {})
    options = SendAvailabilityOptions(**{**defaults, **given})
    timeout_s = options.failover_interval_s + ATTEMPTS * options.attempt_timeout_s
    return BrokerSettings(
        *sides,
        options=options,
        send_timeout_s=float(transport_options.get("send_timeout", timeout_s)),
        create_queues=bool(transport_options.get("create_queues", True)),
    )


def pair_name(url: str) -> str:
    """Return the name of a pair in a URL; empty: it has none."""
    return url.rpartition("://")[2].strip("/")


def _named_pair(name: str) -> tuple[tuple[NamespaceAccess, NamespaceAccess], dict[str, Any]]:
    place = settings_place(None, os.environ)
    file = read_settings(place)
    if file is None or name not in file.pairs:
        why = no_file_text(place) if file is None else f"it is not in {file.path}"
        raise SettingsError(
            f"the broker URL names the pair {name!r:.60}: {why}; {VARIABLE} can name another file"
        )
    pair = file.pairs[name]
    values = {key: pair.value(key) for key in pair.entries}
    missing = [side for side in SIDES if side not in values]
    if missing:
        raise SettingsError(f"{file.path}: pair {name} has no {' and no '.join(missing)}")
    if values["secondary"].startswith(EMBEDDED):
        raise SettingsError(
            f"{file.path}: the secondary of pair {name} is inside a gateway ({EMBEDDED}DIR),"
            " which a broker URL cannot reach; name another pair"
        )
    route = {key: values[key] for key in _ROUTE if key in values}
    primary = NamespaceAccess.parse(values["primary"], name=values.get("label"), **route)
    options = {"backlog_queue_count": values.get("queues"), "ledger": values.get("ledger")}
    return (
        (primary, NamespaceAccess.parse(values["secondary"], **route)),
        {key: value for key, value in options.items() if value is not None},
    )


def _given_sides(options: Mapping[str, Any]) -> tuple[NamespaceAccess, NamespaceAccess]:
    texts = [options.get(side) or os.environ.get(f"TWINBUS_{side.upper()}") for side in SIDES]
    if not all(isinstance(text, str) and text for text in texts):
        raise SettingsError(
            "the broker URL names no pair: give twinbus://NAME, or primary and secondary in"
            " broker_transport_options, or TWINBUS_PRIMARY and TWINBUS_SECONDARY"
        )
    primary, secondary = (NamespaceAccess.parse(str(text)) for text in texts)
    return primary, secondary
