"""The protocol of a control socket: a request is one line of JSON, and so is the answer.

    {"twinbus": 1, "verb": "freeze", "arguments": {"path": "orders"}}
    {"twinbus": 1, "ok": true, "host": {"kind": "pair", "name": "contoso", ...}, "result": {...}}
    {"twinbus": 1, "ok": false, "host": {...}, "error": {"kind": "unknown-verb", "text": "..."}}

A connection carries one request. Input that is no request gets an answer that says why. The verbs
of a pair and of a syphon are at the end. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from twinbus.status.document import PairStatus, SyphonQueueStatus
from twinbus.status.reading import StatusUnreadable, read

VERSION: Final = 1
"""Incremented when an older command would misread a newer pair, or the other way round."""

HELLO: Final = "hello"
"""The verb that every host knows; its answer only identifies the host."""

REQUEST_BYTES_MAX: Final = 16 * 1024
"""A request is a verb and a path of at most 260 characters."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The status of 10,000 entities is about 4 MB."""

REPEATED_MAX: Final = 80
"""Characters of a foreign word that an error repeats."""


KNOWN_SHOWN_MAX: Final = 10
"""Paths to list in an error."""

ADAPTIVE: Final = "adaptive"
"""The rate of a syphon that only the primary's answers limit."""


class ControlRefused(Exception):
    """A request that is refused; `kind` is for programs, the text for people."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class HostCard:
    """Identity of the host at a socket."""

    kind: str
    """`pair` or `syphon`."""
    name: str
    """The label of its backlog queues."""
    pid: int
    program: str = ""
    """The file that runs it, without its arguments, which may hold secrets."""
    began_at: str = ""
    """When it was started, ISO 8601 in UTC."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    verb: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verb:
    """An operation of a host."""

    run: Callable[..., Any]
    """Called with the arguments by name on the host's event loop; may return an awaitable. The
    result must be JSON."""
    takes: tuple[str, ...] = ()
    """Names of the arguments; all are required strings."""


@dataclass(frozen=True, slots=True)
class Answer:
    host: HostCard
    result: Any = None
    error_kind: str | None = None
    error_text: str = ""


def encode_request(request: ControlRequest) -> bytes:
    return _line({"twinbus": VERSION, "verb": request.verb, "arguments": dict(request.arguments)})


def parse_request(line: bytes) -> ControlRequest:
    """Return the request in a line; ControlRefused if it is not valid."""
    document = _document(line)
    _require_version(document, "the command", "this pair")
    verb, arguments = document.get("verb"), document.get("arguments", {})
    if not isinstance(verb, str):
        raise ControlRefused("bad-request", "a request needs a string in the field 'verb'")
    if not isinstance(arguments, dict):
        raise ControlRefused(
            "bad-request", "'arguments' of a request must be an object with one field each"
        )
    return ControlRequest(verb, arguments)


def arguments_for(verbs: Mapping[str, Verb], request: ControlRequest) -> dict[str, str]:
    """Return the arguments for the verb; ControlRefused if they are not what it takes."""
    verb = verbs.get(request.verb)
    if verb is None:
        known = ", ".join(sorted({*verbs, HELLO}))
        raise ControlRefused("unknown-verb", f"no verb {_repeated(request.verb)}; it knows {known}")
    for name, value in request.arguments.items():
        if name not in verb.takes:
            raise ControlRefused("bad-arguments", f"{request.verb} takes no {_repeated(name)}")
        if not isinstance(value, str) or not value.strip():
            raise ControlRefused(
                "bad-arguments", f"{name} of {request.verb} must be a text that is not empty"
            )
    missing = [name for name in verb.takes if name not in request.arguments]
    if missing:
        raise ControlRefused("bad-arguments", f"{request.verb} needs {' and '.join(missing)}")
    return dict(request.arguments)


def encode_result(host: HostCard, result: Any) -> bytes:
    return _line({"twinbus": VERSION, "ok": True, "host": asdict(host), "result": result})


def encode_refusal(host: HostCard, kind: str, text: str) -> bytes:
    error = {"kind": kind, "text": text}
    return _line({"twinbus": VERSION, "ok": False, "host": asdict(host), "error": error})


def parse_answer(line: bytes) -> Answer:
    """Return the answer in a line, a refusal too; ControlRefused if the line is no answer."""
    document = _document(line)
    _require_version(document, "the pair", "this command")
    card, error = document.get("host"), document.get("error")
    try:
        host = read(HostCard, card)
    except StatusUnreadable:
        raise ControlRefused("bad-answer", "the answer does not identify its host") from None
    if document.get("ok") is True:
        return Answer(host, document.get("result"))
    details = error if isinstance(error, dict) else {}
    kind, text = str(details.get("kind", "unknown")), str(details.get("text", "no reason given"))
    return Answer(host, error_kind=kind, error_text=text)


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise ControlRefused("bad-request", "the input is not a line of JSON") from None
    if not isinstance(document, dict):
        raise ControlRefused("bad-request", "the input is JSON, but not an object")
    return document


def _require_version(document: dict[str, Any], other: str, own: str) -> None:
    version = document.get("twinbus")
    if type(version) is not int:
        raise ControlRefused(
            "bad-request", "the field 'twinbus' must be the version of the protocol"
        )
    if version != VERSION:
        raise ControlRefused(
            "version",
            f"{other} speaks version {version} of the control protocol and {own} speaks {VERSION};"
            " use the same release of Twinbus for both",
        )


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _repeated(word: str) -> str:
    return repr(word if len(word) <= REPEATED_MAX else word[:REPEATED_MAX] + "…")


class SteeredPair(Protocol):
    """What `pair_verbs` needs of a pair."""

    def status(self) -> PairStatus: ...
    def freeze(self, path: str) -> None: ...
    def unfreeze(self, path: str) -> None: ...
    def force_failover(self, path: str) -> None: ...
    def mark_healthy(self, path: str) -> None: ...


def pair_verbs(pair: SteeredPair) -> Mapping[str, Verb]:
    def steered(act: Callable[[str], None]) -> Verb:
        def run(path: str) -> dict[str, Any]:
            try:
                known = known_path(pair.status().entities, path)
            except ValueError as error:
                raise ControlRefused("unknown-path", str(error)) from None
            act(known)
            return asdict(pair.status().entities[known])

        return Verb(run, takes=("path",))

    return {
        "status": Verb(lambda: pair.status().as_dict()),
        "freeze": steered(pair.freeze),
        "unfreeze": steered(pair.unfreeze),
        "force-failover": steered(pair.force_failover),
        "mark-healthy": steered(pair.mark_healthy),
    }


class SteeredSyphon(Protocol):
    """What `steering_verbs` needs of a syphon."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def limit_rate(self, most_per_s: float | None) -> None: ...
    def status(self) -> Mapping[str, SyphonQueueStatus]: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def is_paused(self) -> bool: ...


def steering_verbs(syphon: SteeredSyphon) -> Mapping[str, Verb]:
    """Return the verbs that pause, resume, slow down and observe a syphon, by name.

    `progress` costs nothing: unlike the status of a syphon it counts no messages in a namespace.
    """

    def steered(act: Callable[[], None], *, is_paused: bool) -> dict[str, Any]:
        act()
        return {"paused": is_paused, "in_flight": syphon.in_flight}

    def rate(most_per_s: str) -> dict[str, Any]:
        try:
            syphon.limit_rate(None if most_per_s == ADAPTIVE else float(most_per_s))
        except ValueError as error:
            raise ControlRefused(
                "bad-rate", f"a rate is a number of messages a second, or {ADAPTIVE}: {error}"
            ) from None
        return {"rate": most_per_s}

    def progress() -> dict[str, Any]:
        queues = {path: asdict(queue) for path, queue in syphon.status().items()}
        return {"paused": syphon.is_paused, "queues": queues}

    return {
        "pause": Verb(lambda: steered(syphon.pause, is_paused=True)),
        "resume": Verb(lambda: steered(syphon.resume, is_paused=False)),
        "rate": Verb(rate, takes=("most_per_s",)),
        "progress": Verb(progress),
    }


def known_path(entities: Iterable[str], path: str) -> str:
    """Return the path of an entity as the pair spells it; ValueError: it has no sender for it."""
    wanted = path.strip().strip("/").lower()
    paths = sorted(entities)
    for known in paths:
        if known.lower() == wanted:
            return known
    listed = ", ".join(paths[:KNOWN_SHOWN_MAX]) or "none"
    more = len(paths) - KNOWN_SHOWN_MAX
    raise ValueError(
        f"this pair has no sender for {path!r}; it has {listed}"
        + (f" and {more:,} more" if more > 0 else "")
    )
