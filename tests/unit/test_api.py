"""What applications write against, pinned: names and signatures, of both twins.

A line here that has to change is a change that users will meet; a line that is added is a promise.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import FunctionType

import pytest
from azure.core.async_paging import AsyncItemPaged
from azure.core.paging import ItemPaged
from azure.servicebus import ServiceBusReceiver, aio

import twinbus
from docs_pages import api_page
from twinbus import blocking, pipeline, testing
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pair import Pair, pair_namespaces
from twinbus.pairing.core.processing import ProcessOptions, ProcessSettings
from twinbus.pairing.lifecycle.closing import AsyncOnly, BlockingOnly, PairSide
from twinbus.pairing.lifecycle.pair_methods import PairMethods
from twinbus.pairing.observing.events import EventStream
from twinbus.pairing.receiving.processor import Processor
from twinbus.pairing.sending.sender import PairedSender
from twinbus.pairing.transacting.primary_side import PrimarySide
from twinbus.pairing.transacting.transaction import Transaction
from twinbus.pairing.transacting.transactions import Transactions

PAIR = {
    "backlog_queues": "tuple[str, ...]",
    "close": "() -> None",
    "collector": ("(*, entities_max: int = 1000, backlog_every: float = 0.0) -> PairCollector"),
    "events": "(*, buffer: int = 1000) -> EventStream",
    "force_failover": "(path: str) -> None",
    "freeze": "(path: str) -> None",
    "get_queue_receiver": (
        "(queue_name: str, *, guard: bool = False, **sdk_options: Any) -> SdkReceiver"
    ),
    "get_queue_sender": "(queue_name: str, **sdk_options: Any) -> PairedSender",
    "get_subscription_receiver": (
        "(topic_name: str, subscription_name: str, *, guard: bool = False, **sdk_options: Any)"
        " -> SdkReceiver"
    ),
    "get_topic_sender": "(topic_name: str, **sdk_options: Any) -> PairedSender",
    "list_queue_sessions": "(queue_name: str, **sdk_options: Any) -> SdkSessions",
    "list_subscription_sessions": (
        "(topic_name: str, subscription_name: str, **sdk_options: Any) -> SdkSessions"
    ),
    "mark_healthy": "(path: str) -> None",
    "on_event": "(callback: Callable[[PairEvent], None]) -> Callable[[], None]",
    "process": (
        "(entity_name: str, handler: Handler, *, subscription: str | None = None,"
        " **options: Unpack[ProcessOptions]) -> Processor"
    ),
    "start": "() -> None",
    "status": "() -> PairStatus",
    "unfreeze": "(path: str) -> None",
}
PAIR_ATTRIBUTES = {"options", "primary", "secondary"}

SIDE = {
    "close": "() -> None",
    "fault": "(error: BaseException) -> None",
    "reason": "str",
    "state": "SideState",
}

PRIMARY = {
    **SIDE,
    "transaction": "() -> Transaction",
    "transactions": "() -> Transactions",
}

TRANSACTIONS = {
    "close": "() -> None",
    "get_queue_receiver": "(queue_name: str, **sdk_options: Any) -> ServiceBusReceiver",
    "get_subscription_receiver": (
        "(topic_name: str, subscription_name: str, **sdk_options: Any) -> ServiceBusReceiver"
    ),
    "transaction": "() -> Transaction",
}

TRANSACTION = {
    **{
        f"{action}_message": "(message: ServiceBusReceivedMessage) -> None"
        for action in ("abandon", "complete", "defer")
    },
    "dead_letter_message": (
        "(message: ServiceBusReceivedMessage, reason: str | None = None,"
        " error_description: str | None = None) -> None"
    ),
    "send_messages": "(entity_name: str, message: Messages | ServiceBusMessageBatch) -> None",
}

SENDER = {
    "cancel_scheduled_messages": (
        "(sequence_numbers: int | list[int], *, timeout: float | None = None, **unknown: Never)"
        " -> None"
    ),
    "client_identifier": "str",
    "close": "() -> None",
    "create_message_batch": ("(max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch"),
    "entity_name": "str",
    "fully_qualified_namespace": "str",
    "schedule_messages": (
        "(messages: Messages, schedule_time_utc: datetime, *, timeout: float | None = None,"
        " **unknown: Never) -> list[int]"
    ),
    "send_messages": (
        "(message: Messages | ServiceBusMessageBatch, *, timeout: float | None = None,"
        " **unknown: Never) -> None"
    ),
}

PROCESSOR = {
    "run_until_stopped": "() -> None",
    "stop": "() -> None",
    "stop_soon": "() -> None",
}

PROCESS_OPTIONS = (
    *("concurrency", "sessions", "session_idle", "max_lock_renewal", "stop_timeout", "on_error"),
)

PAIR_NAMESPACES = (
    "(primary: str | Namespace, secondary: str | Namespace,"
    " options: SendAvailabilityOptions | None = None)"
)

NAMESPACE = {
    "__init__": (
        "(fully_qualified_namespace: str, credential: Any, name: str | None = None,"
        " **sdk_options: Any) -> None"
    ),
    "from_connection_string": ("(text: str, name: str | None = None, **sdk_options: Any) -> Self"),
}

OPTIONS = [
    "backlog_queue_count",
    "failover_interval",
    "ping_primary_interval",
    "ping_mode",
    "healthy_pings",
    "enable_syphon",
    "syphon_rate",
    "syphon_only",
    "syphon_poll",
    "undeliverable_grace",
    "ttl_policy",
    "twins",
    "twins_with_sessions",
    "session_order",
    "attempt_timeout",
    "retry_total",
    "retry_backoff_factor",
    "retry_backoff_max",
    "create_backlog_queues",
    "require_secondary",
    "accept_drift",
    "strict_guards",
    "board",
    "quorum",
    "message_size_limit",
    "links",
    "ledger",
    "classify",
    "divert_on",
]
"""In the order of SPEC 1."""

SYNC_WORDS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
}


OF_THE_CORE = {
    *((EventStream, "put"), (EventStream, "end"), (Processor, "stop_requested")),
    # For the pair that a processor belongs to.
    *((Processor, name) for name in ("end_soon", "hurry", "is_handler", "name", "status")),
    (Processor, "stop_timeout_s"),
    # For its transactions.
    *((Transactions, name) for name in ("connection", "now", "ended", "entity_path")),
    *((Transactions, name) for name in ("require_open", "require_served", "send_failed")),
}
"""What only the core calls."""


def signature(function: object) -> str:
    """As it is written, without `self` and quotes."""
    assert callable(function)
    text = str(inspect.signature(function)).replace("'", "")
    return re.sub(r"\((?:self|cls)(?:, )?", "(", text)


def public(kind: type) -> dict[str, str]:
    """The public methods and properties of a class, by name."""
    found = {}
    bases = [base for base in kind.__mro__[-2::-1] if base not in (AsyncOnly, BlockingOnly)]
    for name, member in {name: one for base in bases for name, one in vars(base).items()}.items():
        if name.startswith("_") and name not in {*SYNC_WORDS, *SYNC_WORDS.values()}:
            continue
        if isinstance(member, property):
            assert member.fget is not None
            found[name] = signature(member.fget).removeprefix("() -> ")
        elif isinstance(member, FunctionType | classmethod):
            found[name] = signature(getattr(kind, name))
    return found


def without_managers(found: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in found.items() if not name.startswith("_")}


@pytest.mark.parametrize("kind", [Pair, blocking.Pair])
def test_a_pair_offers_exactly_this(kind: type) -> None:
    assert without_managers(public(kind)) == PAIR


def test_receivers_are_of_the_sdk_for_asyncio_or_for_sync_code() -> None:
    for kind, methods in (
        (Pair, PairMethods[aio.ServiceBusReceiver, AsyncItemPaged[str]]),
        (blocking.Pair, PairMethods[ServiceBusReceiver, ItemPaged[str]]),
    ):
        assert methods in kind.__orig_bases__  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [PairedSender, blocking.PairedSender])
def test_a_sender_offers_exactly_this(kind: type) -> None:
    assert without_managers(public(kind)) == SENDER


@pytest.mark.parametrize("kind", [PairSide, blocking.PairSide])
def test_a_side_offers_exactly_this(kind: type) -> None:
    assert public(kind) == SIDE


def test_the_primary_is_a_side_that_has_transactions() -> None:
    for kind in (PrimarySide, blocking.PrimarySide):
        assert public(kind) == PRIMARY
    for function in (twinbus.transactions, blocking.transactions):
        assert signature(function) == "(namespace: str | Namespace) -> Transactions"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Transactions, TRANSACTIONS),
        (blocking.Transactions, TRANSACTIONS),
        (Transaction, TRANSACTION),
        (blocking.Transaction, TRANSACTION),
    ],
)
def test_transactions_offer_exactly_this(kind: type, wanted: dict[str, str]) -> None:
    found = without_managers(public(kind))
    core = {name for owner, name in OF_THE_CORE if owner is kind}
    assert {name: found[name] for name in set(found) - core} == wanted


@pytest.mark.parametrize("kind", [Processor, blocking.Processor])
def test_a_processor_offers_and_takes_exactly_this(kind: type) -> None:
    found = without_managers(public(kind))
    assert {name: found[name] for name in PROCESSOR} == PROCESSOR
    assert set(found) - set(PROCESSOR) <= {name for _, name in OF_THE_CORE}
    assert tuple(ProcessOptions.__annotations__) == PROCESS_OPTIONS
    assert tuple(field.name for field in dataclasses.fields(ProcessSettings)) == PROCESS_OPTIONS


@pytest.mark.parametrize(
    ("core", "twin"),
    [
        (Pair, blocking.Pair),
        (PairedSender, blocking.PairedSender),
        (PairSide, blocking.PairSide),
        (EventStream, blocking.EventStream),
        (Processor, blocking.Processor),
        (PrimarySide, blocking.PrimarySide),
        (Transaction, blocking.Transaction),
        (Transactions, blocking.Transactions),
    ],
    ids=lambda kind: str(kind.__name__),
)
def test_the_twin_for_sync_code_has_the_same_methods_and_none_is_a_coroutine(
    core: type, twin: type
) -> None:
    wanted = {
        SYNC_WORDS.get(name, name): text.replace("AsyncIterator", "Iterator")
        for name, text in public(core).items()
        if (core, name) not in OF_THE_CORE
    }
    assert public(twin) == wanted
    for name in wanted:
        assert not inspect.iscoroutinefunction(getattr(twin, name))
        assert inspect.getdoc(getattr(twin, name)) or name.startswith("_")


def two_namespaces() -> tuple[Namespace, Namespace]:
    end = "SharedAccessKeyName=a;SharedAccessKey=b"
    one, two = (
        Namespace.from_connection_string(f"Endpoint=sb://{name}.example.net;{end}")
        for name in ("contoso", "contoso-dr")
    )
    return one, two


def test_the_twin_has_the_same_attributes() -> None:
    for kind in (Pair, blocking.Pair):
        pair = kind(*two_namespaces(), SendAvailabilityOptions())
        assert {name for name in vars(pair) if not name.startswith("_")} == PAIR_ATTRIBUTES


async def test_a_block_of_the_wrong_kind_names_the_right_one() -> None:
    options = SendAvailabilityOptions()
    asynchronous, sync = Pair(*two_namespaces(), options), blocking.Pair(*two_namespaces(), options)
    text = r"write `async with`, or import pair_namespaces from twinbus\.blocking"
    with pytest.raises(TypeError, match=text), asynchronous:  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match=r"is of twinbus\.blocking: write `with`"):
        async with sync:  # type: ignore[attr-defined]
            pass
    assert issubclass(PairedSender, AsyncOnly)
    assert issubclass(blocking.PairedSender, BlockingOnly)


def test_pair_namespaces_takes_the_same_and_makes_a_pair_of_its_kind() -> None:
    for function in (pair_namespaces, blocking.pair_namespaces):
        assert signature(function) == f"{PAIR_NAMESPACES} -> Pair"


def test_namespaces_and_options_take_exactly_this() -> None:
    for name, text in NAMESPACE.items():
        assert signature(getattr(Namespace, name)) == text
    fields = dataclasses.fields(SendAvailabilityOptions)
    assert [field.name for field in fields] == OPTIONS
    assert all(field.kw_only for field in fields)
    assert blocking.SendAvailabilityOptions is twinbus.SendAvailabilityOptions
    assert blocking.Namespace is twinbus.Namespace


def test_the_senders_have_the_methods_of_the_sdks_own_senders() -> None:
    from azure.servicebus import ServiceBusSender
    from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender

    for ours, theirs in (
        (blocking.PairedSender, ServiceBusSender),
        (PairedSender, AsyncServiceBusSender),
    ):
        for name in ("send_messages", "schedule_messages", "cancel_scheduled_messages"):
            mine, sdk = (inspect.signature(getattr(kind, name)) for kind in (ours, theirs))
            positional = [
                p.name for p in sdk.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
            ]
            assert positional == [
                p.name for p in mine.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
            ]
            assert "timeout" in mine.parameters


def test_the_protocol_of_senders_has_what_both_senders_have() -> None:
    for protocol, paired in (
        (twinbus.MessageSender, PairedSender),
        (blocking.MessageSender, blocking.PairedSender),
    ):
        ours = without_managers(public(paired))
        wanted = {name: text.replace(", **unknown: Never", "") for name, text in ours.items()}
        assert {
            name: text.replace("SdkMessages", "Messages")
            for name, text in without_managers(public(protocol)).items()
        } == wanted


def test_the_asyncio_twin_of_each_blocking_name_is_public_too() -> None:
    """So that a function which takes a pair, its sender or its status can be annotated."""
    assert set(blocking.__all__) <= set(twinbus.__all__)
    assert twinbus.Pair is Pair
    assert twinbus.PairedSender is PairedSender
    assert twinbus.PairSide is PairSide
    assert twinbus.PairStatus is blocking.PairStatus
    assert twinbus.EventStream is EventStream


def test_the_page_of_the_api_has_every_public_name() -> None:
    text = api_page()
    names = {*twinbus.__all__, *blocking.__all__, *testing.__all__, *pipeline.__all__}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []


def test_blocking_exports_these_names() -> None:
    assert sorted(blocking.__all__) == [
        "EventStream",
        "MessageSender",
        "Namespace",
        "Pair",
        "PairSide",
        "PairStatus",
        "PairedSender",
        "PrimarySide",
        "Processor",
        "SendAvailabilityOptions",
        "Transaction",
        "Transactions",
        "Verdict",
        "pair_namespaces",
        "process",
        "transactions",
    ]
