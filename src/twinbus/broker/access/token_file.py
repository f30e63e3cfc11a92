"""Bearer tokens from a file, read again whenever the file changes.

One token a line, four fields with blanks between them; `#` begins a comment:

    NAME TOKEN RIGHTS EXPIRES
    app  eyJ0eXAi.abc.def  Send,Listen  2026-11-17T00:25:00Z

RIGHTS are of Send, Listen, Manage, joined by commas. EXPIRES is a time in UTC (ISO 8601), unix
seconds, or `never`.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from twinbus.broker.sas import ALL_RIGHTS, NEVER_S, AcceptedToken
from twinbus.errors import BrokerStartError

log = logging.getLogger("twinbus.broker")


class TokenFile:
    def __init__(self, path: Path) -> None:
        """Read the file; `BrokerStartError` if that is not possible."""
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._tokens: tuple[AcceptedToken, ...] = ()
        try:
            self._read()
        except OSError as error:
            raise BrokerStartError(f"cannot read the tokens of {path}: {error.strerror}") from error

    def __call__(self) -> tuple[AcceptedToken, ...]:
        """The tokens of the file as it is now; the last good ones while it cannot be read."""
        try:
            self._read()
        except (OSError, BrokerStartError) as error:
            log.warning("%s: %s; the tokens read before stay in force", self._path, error)
        return self._tokens

    def _read(self) -> None:
        found = self._path.stat()
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen == self._seen:
            return
        self._tokens = parse_tokens(self._path.read_text(), str(self._path))
        self._seen = seen
        log.info("%s: %d tokens", self._path, len(self._tokens))


def parse_tokens(text: str, where: str) -> tuple[AcceptedToken, ...]:
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if fields:
            tokens.append(_token(fields, f"{where}, line {number}"))
    return tuple(tokens)


def _token(fields: list[str], where: str) -> AcceptedToken:
    if len(fields) != 4:
        raise BrokerStartError(
            f"{where}: a token has 4 fields (NAME TOKEN RIGHTS EXPIRES), not {len(fields)}"
        )
    name, text, rights, expires = fields
    wanted = frozenset(right.capitalize() for right in rights.split(","))
    if not wanted <= ALL_RIGHTS:
        raise BrokerStartError(f"{where}: {rights!r} are no rights; give Send, Listen or Manage")
    return AcceptedToken(
        name=name, text=text, rights=wanted, expires_at_s=expiry_of(expires, where)
    )


def expiry_of(text: str, where: str) -> float:
    """Unix seconds of an expiry that a person gave; `where` names it in an error."""
    if text == "never":
        return NEVER_S
    try:
        if text.isascii() and text.isdigit():
            return min(float(text), NEVER_S)
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BrokerStartError(
            f"{where}: {text!r} is no expiry; give 2026-11-17T00:25:00Z, unix seconds or never"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
