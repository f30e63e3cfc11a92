"""Who may connect to the ports of one process: address, keys, tokens, TLS and limits.

The broker and the gateway open their ports through the same class. Also loads the certificate of a
port, and loads it again when its files change.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from twinbus.broker.access import Admission, ConnectionLimits, TokenFile
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.http import MetricsAccess
from twinbus.broker.listener import Listener
from twinbus.broker.sas import ALL_RIGHTS, AcceptedToken
from twinbus.errors import BrokerStartError
from twinbus.namespace.address import is_loopback

_log = logging.getLogger(__name__)

DEFAULT_RULE_NAME = "RootManageSharedAccessKey"
DEFAULT_KEY = "SAS_KEY_VALUE"
"""What every Service Bus emulator uses. Known to all, so it is good on loopback only."""

HIDDEN_KEY = "(your key)"


class PortAccess:
    """Checks the settings of a port, opens it, and writes connection strings for it."""

    def __init__(
        self,
        *,
        host: str = "localhost",
        key: str = DEFAULT_KEY,
        rules: Sequence[AuthorizationRule] = (),
        tokens: Sequence[AcceptedToken] = (),
        token_file: Path | None = None,
        require_token: bool = False,
        tls: ssl.SSLContext | None = None,
        require_tls: bool | None = None,
        metrics_token: str | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`require_tls` refuses plain text; None: beyond loopback.

        `metrics_token` is what `/metrics` asks for; None: open on loopback, closed beyond it.
        """
        is_local = is_loopback(host.lower())
        if require_token and not tokens and token_file is None:
            raise BrokerStartError(
                "shared access keys are refused and no token is accepted, so nobody could connect;"
                " give tokens (--tokens FILE or --token NAME:TOKEN:RIGHTS)"
            )
        if key == DEFAULT_KEY and not require_token and not is_local:
            raise BrokerStartError(
                f"the default key is known to everyone, so {host!r} would be open to the network; "
                "give a key of your own (--key), or listen on localhost"
            )
        if require_tls is None:
            require_tls = not is_local
        if require_tls and tls is None:
            raise BrokerStartError(
                f"TLS is required on {host!r} and there is no certificate; give --tls-cert FILE and"
                " --tls-key FILE, or --no-require-tls to send keys and messages in plain text"
            )
        root = AuthorizationRule(key_name=DEFAULT_RULE_NAME, primary_key=key, rights=ALL_RIGHTS)
        self.rules = (root, *rules)
        self.is_key_known = any(rule.primary_key == DEFAULT_KEY for rule in self.rules)
        self.require_token = require_token
        self.require_tls = require_tls
        self.metrics = MetricsAccess(metrics_token, is_open=is_local)
        self.admission = Admission(limits)
        self._host = host
        self._key = key
        self._tokens = tuple(tokens)
        self._token_file = None if token_file is None else TokenFile(token_file)
        self.tls = tls

    def listener(
        self,
        port: int,
        amqp: Callable[[], asyncio.Protocol],
        http: Callable[[], asyncio.Protocol],
    ) -> Listener:
        """The listener of one port; 0: any free one."""
        return Listener(
            self._host, port, amqp, http, self.tls, self.admission, require_tls=self.require_tls
        )

    def accepted_tokens(self) -> tuple[AcceptedToken, ...]:
        return self._tokens + (self._token_file() if self._token_file is not None else ())

    def printable_connection_string(self, port: int, name: str = "") -> str:
        """The connection string for a terminal: a key of one's own is a secret."""
        text = self.connection_string(port, name, tls=self.require_tls)
        return text if self._key == DEFAULT_KEY else text.replace(self._key, HIDDEN_KEY)

    def connection_string(self, port: int, name: str = "", *, tls: bool = False) -> str:
        """What to give to a Service Bus client, with the right to manage.

        The name of the namespace is behind a `#`: Twinbus takes it as the label, and the SDKs of
        Python, Java, JavaScript and Go connect as without it.
        With `tls` it is what to give to Twinbus. The SDK itself ignores the port of such a string
        and needs `custom_endpoint_address="sb://HOST:PORT", transport_type=TransportType.Amqp`.
        """
        host = f"[{self._host}]" if ":" in self._host else self._host
        label = f"/#{name}" if name else ""
        return (
            f"Endpoint=sb://{host}:{port}{label};SharedAccessKeyName={DEFAULT_RULE_NAME};"
            f"SharedAccessKey={self._key};" + ("" if tls else "UseDevelopmentEmulator=true;")
        )


RELOAD_CHECK_S = 2.0
"""Time between two checks of the files of a certificate."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The broker's certificate from two PEM files; BrokerStartError if it cannot be loaded.

    The certificate file holds the broker's own certificate first, then those that lead to a root.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            raise BrokerStartError(
                f"{option} {file} cannot be read: {error.strerror}; give a PEM file"
            ) from error
    try:
        # Without a password of its own, OpenSSL would stop and ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise BrokerStartError(
            f"the certificate {certificate} and the key {key} cannot be used: {_reason(error)};"
            " give a certificate and its own key, both PEM, the key without a password"
        ) from error
    return context


async def reload_on_change(
    context: ssl.SSLContext, certificate: Path, key: Path, every_s: float = RELOAD_CHECK_S
) -> None:
    """Load the certificate again whenever its files change, until cancelled.

    New handshakes get the new one; connections go on. Files that cannot be used, such as a
    certificate without its new key yet, change nothing and are tried again.
    """
    loaded = _state_of(certificate, key)
    while True:
        await asyncio.sleep(every_s)
        found = _state_of(certificate, key)
        if found == loaded:
            continue
        try:
            # Into a context of its own first: half a change must not reach the live one.
            server_context(certificate, key)
            context.load_cert_chain(certificate, key, password=_no_password)
        except (BrokerStartError, OSError, ValueError) as error:
            _log.warning("the certificate is not loaded again: %s", error)
            continue
        loaded = found
        _log.warning("the certificate %s was loaded again", certificate)


def _state_of(*files: Path) -> list[tuple[int, int, int]]:
    """What changes when a file is written or replaced."""
    try:
        return [(it.st_mtime_ns, it.st_ino, it.st_size) for it in map(Path.stat, files)]
    except OSError:
        return []


def _no_password() -> str:
    raise ValueError("the key is locked with a password")


def _reason(error: Exception) -> str:
    known = {
        "KEY_VALUES_MISMATCH": "the key is not the certificate's",
        "NO_START_LINE": "one of them is no PEM file",
    }
    reason = str(getattr(error, "reason", "") or "")
    # OpenSSL's own words for a file that is no PEM at all are "PEM lib".
    return known.get(reason) or ("one is no PEM file" if "PEM" in str(error) else str(error))
