"""Who may do what: shared access signatures checked against a namespace's and its entities' rules.

A token names an audience (a URI whose path covers an entity and everything below it), a rule and an
expiry, signed with one of the rule's keys. Clients present the same token on `$cbs` and in the HTTP
Authorization header. Pure: the time is an argument.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from sys import getsizeof
from urllib.parse import quote_plus, unquote, unquote_plus, urlsplit

from twinbus.amqp.budgets import Budget
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.refusals import ArgumentOutOfRange, Unauthorized
from twinbus.namespace.address import is_loopback
from twinbus.namespace.tokens import SCHEME, signature_digest, utc_text
from twinbus.servicebus.names import ENTITY_NAME_MAX, path_of

LISTEN, SEND, MANAGE = "Listen", "Send", "Manage"
ALL_RIGHTS = frozenset({LISTEN, SEND, MANAGE})

TOKEN_LENGTH_MAX = 8192
"""Characters. A real token has a few hundred; the limit bounds the work done for a stranger."""

AUDIENCE_PATH_MAX = 2 * ENTITY_NAME_MAX
"""Characters of an audience's path, which a stranger chooses: rules are looked for at each of its
parts. The longest real one is an entity's path (260) with a subscription, a rule and a node."""

AUDIENCE_MAX = 1_024
"""Characters of the name that a client gives a token on `$cbs`: scheme, host and path."""

GRANTS_MAX = 5_000
"""Tokens kept for one connection; a client needs one for each entity it uses."""

GRANT_BYTES = 400
"""A grant without its names."""

NEVER_S = 253_402_300_800.0
"""The year 10,000, for a token without an expiry."""

INVALID_SIGNATURE = "InvalidSignature: The token has an invalid signature."
EXPIRED = "ExpiredToken: The token is expired."
LOCAL_AUTH_DISABLED = (
    "LocalAuthDisabled: Authorization failed because SAS authentication has been disabled for the"
    " namespace."
)
"""How Azure begins these refusals."""

_BEARER = "Bearer "
_FIELDS = ("sr", "sig", "se", "skn")
_EXPIRY_DIGITS_MAX = 15
"""Seconds since 1970 in 15 digits reach past the year 30,000,000: enough for "never expires"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedToken:
    """A token that is good as it stands, without a signature that could be checked.

    For tests of token credentials: this broker cannot ask a Microsoft Entra tenant, so it accepts
    the text from any client until it expires.
    """

    name: str
    text: str = field(repr=False)
    rights: frozenset[str]
    expires_at_s: float = NEVER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What a verified token allows: some rights, on an entity and all below it, for a time."""

    path: str
    """Lower case, no leading or trailing slash; "" is the whole namespace."""
    rights: frozenset[str]
    expires_at_s: float
    rule_name: str
    signed_with: str = field(default="", repr=False)
    """The key of the rule that signed the token; empty: the token is not a signature."""
    token: AcceptedToken | None = None
    """The token that was accepted as it stands."""

    def allows(self, address: str, right: str) -> bool:
        """Whether `right` is granted on the node at `address` ("orders", "orders/$management")."""
        return right in self.rights and covers(self.path, address)

    def is_expired(self, now_s: float) -> bool:
        return now_s >= self.expires_at_s


class ConnectionGrants:
    __slots__ = ("_by_audience", "_held_bytes")

    def __init__(self, held_bytes: Budget | None = None) -> None:
        """`held_bytes` is the budget of the connection."""
        self._by_audience: dict[str, Grant] = {}
        self._held_bytes = held_bytes or Budget("this connection", "bytes")

    def put(self, audience: str, grant: Grant) -> None:
        """Add a grant; it replaces an older one for the same audience."""
        grants, held = self._by_audience, self._held_bytes
        if audience not in grants and len(grants) >= GRANTS_MAX:
            oldest = next(iter(grants))
            held.give_back(_grant_bytes(oldest, grants.pop(oldest)))
        before = grants.pop(audience, None)
        if before is not None:
            held.give_back(_grant_bytes(audience, before))
        held.take(_grant_bytes(audience, grant))
        grants[audience] = grant

    def require(self, address: str, right: str, now_ms: int) -> int:
        """The time (ms) until which `right` is granted; raises `Unauthorized` if it is not."""
        now_s = now_ms / 1000
        lapsed = ""
        for grant in self._by_audience.values():
            if grant.allows(address, right):
                if not grant.is_expired(now_s):
                    return int(grant.expires_at_s * 1000)
                lapsed = f" The token of rule {grant.rule_name!r} for it has expired."
        raise Unauthorized.lacking(right, address, lapsed)

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._by_audience.values())


def require_short(audience: str) -> None:
    """Refuse a longer name of a token, before anything takes it apart and remembers it."""
    if len(audience) > AUDIENCE_MAX:
        raise ArgumentOutOfRange(
            f"The name of the token has {len(audience)} characters, the limit is"
            f" {AUDIENCE_MAX}; name the address of an entity, such as sb://host/entity."
        )


def _grant_bytes(audience: str, grant: Grant) -> int:
    return GRANT_BYTES + getsizeof(audience) + getsizeof(grant.path)


def covers(granted_path: str, address: str) -> bool:
    """Whether `address` is `granted_path` or lies below it; whole segments, any letter case."""
    if not granted_path:
        return True
    path = address.strip("/").lower()
    return path == granted_path or path.startswith(granted_path + "/")


class AccessPolicy:
    """The rules of one namespace, and through `entity_rules` those of its entities."""

    def __init__(
        self,
        rules: Iterable[AuthorizationRule],
        entity_rules: Callable[[str], Iterable[AuthorizationRule]] = lambda _path: (),
        tokens: Callable[[], Iterable[AcceptedToken]] = tuple,
        *,
        rules_below: Callable[[], Iterable[tuple[str, AuthorizationRule]]] = tuple,
        require_token: bool = False,
        ahead_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`entity_rules(path)` gives the rules of the entity at `path`, if there is one;
        `rules_below` those of all entities with their paths.

        `tokens` gives the bearer tokens that are accepted now. `require_token` refuses shared
        access signatures, as a namespace with local authentication disabled does. `ahead_s` is
        how far the clock was moved: a token has an expiry by the clock of its client, which
        presents it now.
        """
        self._ahead_s = ahead_s
        self.rules = {rule.key_name: rule for rule in rules}
        self._entity_rules = entity_rules
        self._rules_below = rules_below
        self._tokens = tokens
        self.takes_keys = not require_token
        """Whether shared access keys are accepted, as signatures or as they are."""

    def verify(self, token: str, now_s: float) -> Grant:
        """The grant of `token` at `now_s`; raises `Unauthorized` with the reason if it has none."""
        accepted = self._accepted(token, now_s)
        if accepted is not None:
            return accepted
        if not self.takes_keys and token.startswith(SCHEME):
            raise Unauthorized(LOCAL_AUTH_DISABLED)
        fields = _parse(token)
        path = _audience_path(unquote_plus(fields["sr"]))
        expires_at_s = _expiry(fields["se"]) + self._ahead_s()
        name, candidates = self._named(fields["skn"], path)
        signature = _signature(fields["sig"])
        signed = ((rule, _signing_key(rule, fields, signature)) for rule in candidates)
        rule, key = next(((rule, key) for rule, key in signed if key), (None, ""))
        if rule is None:
            # One text: a stranger must not learn which rules and entities exist.
            raise Unauthorized(
                f"{INVALID_SIGNATURE} The signature does not match a key of a shared access rule "
                f"named {name!r}; check SharedAccessKeyName and SharedAccessKey."
            )
        _require_unexpired(f"of rule {name!r}", expires_at_s, now_s)
        return _granted(rule, path, key, expires_at_s)

    def login(self, name: str, key: str) -> list[Grant]:
        """What a rule grants to who has its key (SASL PLAIN), until the rule or the key goes.

        One of the namespace, else those of the entities that have a rule of that name and key.
        Raises `Unauthorized` if there is none.
        """
        if not self.takes_keys:
            raise Unauthorized(LOCAL_AUTH_DISABLED)
        own = self.rules.get(name)
        named = (
            [("", own)]
            if own is not None
            else [(path, rule) for path, rule in self._rules_below() if rule.key_name == name]
        )
        found = [
            _granted(rule, path.lower(), key, NEVER_S) for path, rule in named if _is_key(rule, key)
        ]
        if not found:
            raise Unauthorized(
                f"The key is not one of a shared access rule named {name[:80]!r};"
                " check SharedAccessKeyName and SharedAccessKey."
            )
        return found

    def still_holds(self, grant: Grant) -> bool:
        """Whether the rule of a grant still has the key that signed its token, and its rights."""
        return not grant.signed_with or any(
            rule.key_name == grant.rule_name
            and grant.signed_with in (rule.primary_key, rule.secondary_key)
            and (MANAGE in rule.rights or grant.rights <= rule.rights)
            for rule in self._in_reach(grant.path)
        )

    def _accepted(self, token: str, now_s: float) -> Grant | None:
        """The grant of a token that is accepted as it stands; None: it is not in the list."""
        text = token.removeprefix(_BEARER).encode()
        for one in self._tokens():
            if hmac.compare_digest(one.text.encode(), text):
                rights = ALL_RIGHTS if MANAGE in one.rights else one.rights
                until_s = one.expires_at_s + self._ahead_s()
                _require_unexpired(f"{one.name!r}", until_s, now_s)
                return Grant(
                    path="", rights=rights, expires_at_s=until_s, rule_name=one.name, token=one
                )
        return None

    def _named(self, encoded_name: str, path: str) -> tuple[str, list[AuthorizationRule]]:
        # The Python SDK encodes the rule's name twice, the others once. An exact match wins, so a
        # name that really holds a percent sign still works.
        once = unquote_plus(encoded_name)
        in_reach = list(self._in_reach(path))
        for name in dict.fromkeys((once, unquote_plus(once))):
            found = [rule for rule in in_reach if rule.key_name == name]
            if found:
                return name, found
        return once, []

    def _in_reach(self, path: str) -> Iterable[AuthorizationRule]:
        """The namespace's rules and those of each entity that holds `path`."""
        yield from self.rules.values()
        while path:
            yield from self._entity_rules(path)
            path = path.rpartition("/")[0]


def _granted(rule: AuthorizationRule, path: str, key: str, expires_at_s: float) -> Grant:
    rights = ALL_RIGHTS if MANAGE in rule.rights else rule.rights
    return Grant(
        path=path,
        rights=rights,
        expires_at_s=expires_at_s,
        rule_name=rule.key_name,
        signed_with=key,
    )


def _is_key(rule: AuthorizationRule, key: str) -> bool:
    given = key.encode()
    kept = [each.encode() for each in (rule.primary_key, rule.secondary_key) if each]
    return any(hmac.compare_digest(each, given) for each in kept)


def _require_unexpired(whose: str, expires_at_s: float, now_s: float) -> None:
    if now_s >= expires_at_s:
        raise Unauthorized(
            f"{EXPIRED} Expiration time: {utc_text(expires_at_s)}, {now_s - expires_at_s:.0f} s"
            f" ago. It is the token {whose}; present a new one, or check the clocks."
        )


def _parse(token: str) -> dict[str, str]:
    """The four fields of a token, still url-encoded."""
    if len(token) > TOKEN_LENGTH_MAX:
        raise Unauthorized(
            f"The token has {len(token)} characters, the limit is {TOKEN_LENGTH_MAX}."
        )
    if not token.startswith(SCHEME):
        raise Unauthorized(_not_a_signature(token))
    fields: dict[str, str] = {}
    for pair in token[len(SCHEME) :].strip().split("&"):
        key, _, value = pair.partition("=")
        if key in fields:
            raise Unauthorized(f"The shared access signature has the field {key!r} twice.")
        fields[key] = value
    missing = [key for key in _FIELDS if not fields.get(key)]
    if missing:
        raise Unauthorized(
            f"The shared access signature lacks {', '.join(missing)}; "
            "it needs sr (audience), sig, se (expiry) and skn (rule name)."
        )
    return fields


def _not_a_signature(token: str) -> str:
    if token.startswith((_BEARER, "eyJ")):
        return (
            "This JSON web token is not accepted: there is no Microsoft Entra tenant here to check "
            "it with. Use a shared access key (a connection string), or for tests start the broker "
            "with the token (--token NAME:TOKEN:Send,Listen, or --tokens FILE)."
        )
    return (
        "The token is not a shared access signature: it must begin with 'SharedAccessSignature '."
    )


def _audience_path(audience: str) -> str:
    """The path part of an audience URI; its scheme and host are whatever the client dialled."""
    if "://" not in audience and _is_host(audience.partition("/")[0]):
        # Some libraries, such as that of the Go SDK, sign the host and the path alone.
        audience = f"sb://{audience}"
    try:
        parts = urlsplit(audience)
        is_address = bool(parts.scheme and parts.hostname)
    except ValueError:
        parts, is_address = None, False
    if parts is None or not is_address:
        raise Unauthorized(
            f"The audience {audience[:200]!r} is no URI; expected one like sb://host/entity."
        )
    path = unquote(path_of(parts)).strip("/").lower()
    if len(path) > AUDIENCE_PATH_MAX:
        raise Unauthorized(
            f"The path of the audience has {len(path)} characters, the limit is"
            f" {AUDIENCE_PATH_MAX}; sign the address of an entity, such as sb://host/entity."
        )
    if "//" in path:
        raise Unauthorized(f"The path of the audience, {path!r:.200}, has an empty part ('//').")
    return path


def _is_host(text: str) -> bool:
    """Whether an audience that begins with this names a namespace. A bare path must not: a token
    that was meant for one entity would be one for all of them."""
    name, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit():
        return bool(name)
    return ".servicebus." in text.lower() or is_loopback(text.lower())


def _expiry(text: str) -> float:
    if not (text.isascii() and text.isdigit()) or len(text) > _EXPIRY_DIGITS_MAX:
        raise Unauthorized(
            f"The token's expiry se={text[:40]!r} is no whole number of seconds since 1970."
        )
    return float(text)


def _signature(encoded: str) -> bytes:
    # `unquote`, not `unquote_plus`: a plus sign that a client left unencoded is base64, no space.
    try:
        return base64.b64decode(unquote(encoded), validate=True)
    except (binascii.Error, ValueError):
        raise Unauthorized("The token's signature (sig) is not base64.") from None


def _signing_key(rule: AuthorizationRule, fields: dict[str, str], signature: bytes) -> str:
    """The key of the rule that made the signature; empty: none did."""
    # The signed text is the audience as encoded by the signer. That is what stands in the token,
    # except where a library re-encoded it on the way (other letter case of the %-escapes).
    resources = {fields["sr"], quote_plus(unquote_plus(fields["sr"]))}
    matched = ""
    for key in (rule.primary_key, rule.secondary_key):
        for resource in resources:
            if key and hmac.compare_digest(
                signature_digest(key, resource, fields["se"]), signature
            ):
                matched = key
    return matched
