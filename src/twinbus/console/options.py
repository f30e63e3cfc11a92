"""Options that several commands share, and the functions that check their values."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from twinbus.broker.access import OPEN_LIMIT_S, STRANGERS_MAX, TOKEN_LIMIT_S
from twinbus.broker.budgets import CONNECTIONS_MAX
from twinbus.console.declaration import argument, flag, option, setting
from twinbus.console.output import Output, OutputOption, WrongUse
from twinbus.console.times import window_of
from twinbus.cost.arithmetic import CountingRule
from twinbus.options import BACKLOG_QUEUE_COUNT_MAX, QUORUM_MAX
from twinbus.settings.keys import EMBEDDED

if TYPE_CHECKING:
    import ssl

    from twinbus.console.backlog.queue_contents import QueueSelection
    from twinbus.namespace.access import NamespaceAccess
    from twinbus.namespace.namespace import Namespace
    from twinbus.pipeline.reports.documents import ReportRequest

MESSAGING_UNITS: Final = (1, 2, 4, 8, 16)
"""The sizes in which Azure sells a Premium namespace."""

NO_TABLES: Final = "none"
"""The value of --tables for a report that keeps none."""

SECRETS: Final = "Put connection strings into the environment: other users can see a command line."

LabelOption = Annotated[str | None, setting("label")]
QueuesOption = Annotated[int, setting("queues", min=1, max=BACKLOG_QUEUE_COUNT_MAX)]
RecordingOption = Annotated[str | None, setting("ledger")]
StrictOption = Annotated[bool, setting("strict", "--strict/--no-strict")]
LedgerArgument = Annotated[
    str,
    setting(
        "ledger",
        of=typer.Argument,
        metavar="LEDGER",
        help="The ledger: a directory or a Hadoop URL.",
    ),
]
QueueOption = Annotated[str | None, option("QUEUE", "One backlog queue only: its index or path.")]
EntityOption = Annotated[str | None, option("PATH", "Only messages of this queue or topic.")]
SinceOption = Annotated[
    str | None,
    option(
        "TIME",
        "From this day or time (UTC) on, or from this long ago: 2026-11-16, 2026-11-16T05:30,"
        " 90min, 24h.",
    ),
]
PairOption = Annotated[
    str | None,
    option(
        "NAME",
        "The pair: the label of its primary for all its processes, or LABEL.PID for one. A name of"
        " the settings file stands for the label of that pair.",
        is_eager=True,
    ),
]
MasterOption = Annotated[
    str | None,
    option(
        "URL",
        "Spark master. Unset: this machine. Give a token of Spark Connect in"
        " SPARK_CONNECT_AUTHENTICATE_TOKEN, not here.",
    ),
]
SettlementOption = Annotated[
    str,
    option(
        "RULE",
        "Whether complete, defer, dead-letter, abandon and release count as operations: `counted`,"
        " or `free` as in the documented model.",
    ),
]
PricesOption = Annotated[
    Path | None,
    option(
        "FILE",
        "Price book. Unset: the newest one that ships with Twinbus.",
        envvar="TWINBUS_PRICES",
    ),
]
SharedOption = Annotated[
    bool,
    flag(
        "--shared",
        "With --master: local paths are directories that all machines of the cluster mount."
        " Without it they are refused there.",
    ),
]


@dataclass(frozen=True, kw_only=True, repr=False)
class PortOptions:
    """Who may connect to a port, and how; without a repr, which would show its secrets.

    The settings file gives them to the gateway only: `serve` takes no pair.
    """

    host: Annotated[str, setting("gateway.host")] = "localhost"
    key: Annotated[
        str | None,
        option("KEY", "Key of the rule RootManageSharedAccessKey.", envvar="TWINBUS_KEY"),
    ] = None
    rule: Annotated[
        list[str] | None,
        option(
            "RULE",
            "A further rule, NAME:KEY:Send,Listen. Repeatable.",
            envvar="TWINBUS_RULES",
        ),
    ] = None
    key_file: Annotated[Path | None, setting("gateway.key-file")] = None
    rule_file: Annotated[Path | None, setting("gateway.rule-file")] = None
    token: Annotated[
        list[str] | None,
        option(
            "TOKEN",
            "A bearer token to accept, NAME:TOKEN:Send,Listen[:EXPIRES], for tests of token"
            " credentials. Repeatable.",
        ),
    ] = None
    tokens: Annotated[Path | None, setting("gateway.tokens")] = None
    require_token: Annotated[bool, setting("gateway.require-token", "--require-token")] = False
    tls_cert: Annotated[Path | None, setting("gateway.tls-cert")] = None
    tls_key: Annotated[Path | None, setting("gateway.tls-key")] = None
    require_tls: Annotated[
        bool | None, setting("gateway.require-tls", "--require-tls/--no-require-tls")
    ] = None
    metrics_token_file: Annotated[Path | None, setting("gateway.metrics-token-file")] = None
    connections_max: Annotated[int, option("N", "Most connections in all.")] = CONNECTIONS_MAX
    strangers_max: Annotated[
        int, option("N", "Most connections of one address that have put no token.")
    ] = STRANGERS_MAX
    open_limit: Annotated[float, option("SECONDS", "Time for a client to open its connection.")] = (
        OPEN_LIMIT_S
    )
    token_limit: Annotated[
        float, option("SECONDS", "Time for a client to put a valid token after that.")
    ] = TOKEN_LIMIT_S


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    namespace: Annotated[str, setting("gateway.address", of=typer.Argument)]
    queues: QueuesOption = 10
    failover_interval: Annotated[str, setting("gateway.failover-interval")] = "20s"
    ping_interval: Annotated[str, setting("gateway.ping-interval")] = "60s"
    attempt_timeout: Annotated[str, setting("gateway.attempt-timeout")] = "5s"
    patience: Annotated[str, setting("gateway.patience")] = "55s"
    divert_on: Annotated[list[str] | None, setting("gateway.divert-on")] = None
    twins: Annotated[
        list[str] | None,
        setting(
            "twins", "--twin", help="Divert this entity to its twin, or a pattern. Repeatable."
        ),
    ] = None
    twins_with_sessions: Annotated[
        bool, setting("twins-with-sessions", "--twins-with-sessions")
    ] = False
    board: Annotated[bool, setting("board", "--board/--no-board")] = True
    quorum: Annotated[int, setting("quorum", min=1, max=QUORUM_MAX)] = 2
    strict: StrictOption = False
    syphon: Annotated[bool, setting("gateway.syphon", "--syphon/--no-syphon")] = True
    ledger: RecordingOption = None
    quiet: Annotated[bool, flag("--quiet", "Log errors only.")] = False


@dataclass(frozen=True, kw_only=True, repr=False)
class ServeOptions(PortOptions):
    """The options of `twinbus serve`; without a repr, which would show its secrets."""

    namespaces: Annotated[
        list[str] | None,
        argument("NAME:PORT...", "Namespaces; port 0 picks a free one."),
    ] = None
    config: Annotated[
        Path | None,
        option(
            "FILE",
            "Config.json of Microsoft's emulator: its entities, on ports 5672 and 5300 unless"
            " NAME:PORT is given; in memory unless --data is.",
        ),
    ] = None
    second_port: Annotated[
        int | None, option("PORT", "Serve the first namespace on this port too.", min=0)
    ] = None
    data: Annotated[Path | None, option("DIR", "Directory to keep messages in.")] = None
    ephemeral: Annotated[bool, flag("--ephemeral", "Keep messages in memory only.")] = False
    queue: Annotated[
        list[str] | None,
        option("NAME", "Create this queue in the first namespace if missing. Repeatable."),
    ] = None
    topic: Annotated[
        list[str] | None,
        option("NAME[/SUB]", "The same for a topic, with a subscription. Repeatable."),
    ] = None
    like: Annotated[
        str | None,
        option("TIER", "Limits and throttling of azure-standard or azure-premium."),
    ] = None
    idle_detach: Annotated[
        str | None,
        option("TIME", "Detach a link that is idle for this long; 10min with --like."),
    ] = None
    fault_seed: Annotated[int, option("N", "Seed of random faults.")] = 0
    test_clock: Annotated[
        bool,
        flag("--test-clock", "Let `twinbus faults advance` move the clock; with --ephemeral only."),
    ] = False
    ledger: Annotated[str | None, option("DIR", "Directory for the broker's own ledger.")] = None
    check: Annotated[
        Path | None,
        option("DIR", "Serve nothing: read all of this data directory and print what is damaged."),
    ] = None
    output: OutputOption = Output.TEXT
    quiet: Annotated[bool, flag("--quiet", "Log errors only, not each connection and refusal.")] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """How a command reaches its namespaces, where the namespaces' own texts do not say it."""

    credential: Annotated[str | None, setting("credential")] = None
    transport: Annotated[str | None, setting("transport")] = None
    proxy: Annotated[str | None, setting("proxy")] = None
    endpoint: Annotated[str | None, setting("endpoint")] = None

    def access(self, text: str | None, role: str, name: str | None = None) -> NamespaceAccess:
        """Return the access of a side; WrongUse, without any secret, if it has none."""
        from twinbus.namespace.access import NamespaceAccess

        if not text or not text.strip():
            raise WrongUse(
                f"the {role} namespace is missing: put its connection string into"
                f" TWINBUS_{role.upper()}, give it as an option, or name a pair with --pair"
            )
        if text.startswith(EMBEDDED):
            raise WrongUse(
                f"the {role} is inside a gateway ({EMBEDDED}DIR), which only `twinbus gateway`"
                " reaches; status, top, check and page show the gateway with its backlog"
            )
        try:
            routes = {one.name: getattr(self, one.name) or "" for one in fields(AccessOptions)}
            return NamespaceAccess.parse(text, name=name, **routes)
        except ValueError as error:
            raise WrongUse(f"the {role} namespace: {error}") from None

    def side(self, text: str | None, role: str, name: str | None = None) -> Namespace:
        """Return a side; WrongUse as above, CredentialError if its credential cannot be opened."""
        # Imported late: it takes a moment to load, and help needs none of it.
        from twinbus.namespace.namespace import Namespace

        return Namespace.from_access(self.access(text, role, name))


@dataclass(frozen=True, kw_only=True)
class _SideTexts:
    """The first options of a command about two namespaces."""

    primary: Annotated[str | None, setting("primary")] = None
    secondary: Annotated[str | None, setting("secondary")] = None
    label: LabelOption = None


@dataclass(frozen=True, kw_only=True)
class SidesOptions(AccessOptions, _SideTexts):
    """The two namespaces of a command, the primary's label, and how to reach them."""

    @property
    def secondary_side(self) -> Namespace:
        """The secondary; WrongUse if it is missing or not valid."""
        return self.side(self.secondary, "secondary")

    @property
    def both(self) -> tuple[Namespace, Namespace]:
        """The primary and the secondary; WrongUse if one is missing or not valid."""
        return self.side(self.primary, "primary", self.label), self.secondary_side

    def selection(self, queue: str | None) -> QueueSelection:
        """Return the backlog queues of --queue, all of them if it is None."""
        from twinbus.console.backlog.queue_contents import QueueSelection

        return QueueSelection(self.secondary_side, self.given_label, queue)

    @property
    def given_label(self) -> str | None:
        """The value of --label, else the label of --primary; None if neither is given."""
        from twinbus.namespace.address import namespace_label

        if self.label is not None:
            try:
                return namespace_label("", 0, self.label)
            except ValueError as error:
                raise WrongUse(str(error).replace("name must", "--label must", 1)) from None
        return self.access(self.primary, "primary").label if self.primary else None


def require_shared_places(master: str | None, *places: str | None, shared: bool) -> None:
    """Raise WrongUse, before Spark starts, for a local path on a cluster without --shared."""
    from twinbus.ledger.record import LedgerError
    from twinbus.pipeline.spark.session import require_shared

    try:
        require_shared(master, places, shared=shared)
    except LedgerError as error:
        raise WrongUse(str(error)) from None


def require_ledger(ledger: str) -> None:
    """Raise WrongUse, before Spark starts, if there is no ledger in the directory."""
    if "://" in ledger:
        return
    if not Path(ledger).is_dir():
        kind = "is a file" if Path(ledger).exists() else "is not there"
        raise WrongUse(f"LEDGER must be a directory with a ledger in it; {ledger} {kind}")
    from twinbus.ledger.record import LedgerError
    from twinbus.pipeline.tables.bronze import location_of

    try:
        location_of(ledger)
    except LedgerError as error:
        raise WrongUse(str(error)) from None


def counting_rule(settlement: str) -> CountingRule:
    """Return the rule that --settlement names; WrongUse if it names neither."""
    word = settlement.strip().lower()
    if word not in ("free", "counted"):
        raise WrongUse(f"--settlement must be free or counted; got {settlement!r:.60}")
    return CountingRule(count_settlement=word == "counted")


def require_messaging_units(count: int) -> None:
    """Raise WrongUse if Azure does not sell a Premium namespace of this size."""
    if count not in MESSAGING_UNITS:
        raise WrongUse(
            f"--messaging-units must be one of {', '.join(map(str, MESSAGING_UNITS))}; got {count}"
        )


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    ledger: LedgerArgument
    tables: Annotated[
        str | None,
        option(
            "DIR",
            "Location of its tables; unset: _tables inside the ledger. `none`: keep no tables and"
            " read all records.",
        ),
    ] = None
    since: SinceOption = None
    until: Annotated[str | None, option("TIME", "End, exclusive; a day is included whole.")] = None
    entity: EntityOption = None
    output: Annotated[
        Literal["text", "json", "csv", "html"],
        typer.Option(help="Text to read, JSON, one table as CSV, or a page with charts."),
    ] = "text"
    to: Annotated[
        Path | None,
        option(
            "FILE", "Write the report into this file; its answer, one line, is printed as well."
        ),
    ] = None
    master: MasterOption = None
    shared: SharedOption = False

    def request(self) -> ReportRequest:
        """Return the window and the entity; WrongUse if an option is not valid."""
        from twinbus.pipeline.reports.documents import ReportRequest

        if self.entity is not None and not self.entity.strip("/ "):
            raise WrongUse("--entity is empty: name a queue or a topic, or leave it out")
        tables = None if self.tables == NO_TABLES else self.tables
        require_shared_places(self.master, self.ledger, tables, shared=self.shared)
        since_ms, until_ms = window_of(self.since, self.until, datetime.now(UTC))
        entity = None if self.entity is None else self.entity.strip("/ ")
        return ReportRequest(since_ms=since_ms, until_ms=until_ms, entity=entity)


@dataclass(frozen=True, kw_only=True, repr=False)
class PageOptions(SidesOptions):
    port: Annotated[int, option("PORT", "Port to listen on; 0 picks a free one.", min=0)] = 0
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "localhost"
    ledger: Annotated[
        str | None,
        setting("ledger", help="Ledger to read the past from, and to record actions in."),
    ] = None
    peer: Annotated[
        list[str] | None,
        option(
            "URL",
            "Also show the pairs of the page at this address, with its token. Repeatable.",
            envvar="TWINBUS_PEERS",
        ),
    ] = None
    prices: PricesOption = None
    read_only: Annotated[bool, flag("--read-only", "Refuse every action.")] = False
    name: Annotated[
        list[str] | None,
        option("HOST", "A further name by which browsers reach this page. Repeatable."),
    ] = None
    operator_token_file: Annotated[
        Path | None, option("FILE", "File with the operator's token. Unset: a new one.")
    ] = None
    viewer_token_file: Annotated[
        Path | None, option("FILE", "File with the token of viewers, who may not act.")
    ] = None
    tls_cert: Annotated[Path | None, option("FILE", "Certificate chain (PEM).")] = None
    tls_key: Annotated[Path | None, option("FILE", "The certificate's private key (PEM).")] = None

    def __repr__(self) -> str:
        # That of a dataclass would show connection strings and tokens.
        return "PageOptions(...)"


def secret_in(file: Path | None) -> str | None:
    """Return the one line of a file with one secret; None without a file."""
    if file is None:
        return None
    lines = secret_lines(file)
    if len(lines) != 1:
        raise WrongUse(f"{file} has {len(lines)} lines; give the secret on one line")
    return lines[0]


def secret_lines(file: Path | None) -> list[str]:
    """Return the lines of a file of secrets, without empty ones and comments."""
    if file is None:
        return []
    require_private(file)
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{file} cannot be read: {error}") from error
    return [line for line in lines if line and not line.startswith("#")]


def require_private(file: Path | None) -> None:
    """WrongUse if a file of secrets is this user's, and other users can read it.

    As ssh does: a file of another user, such as a mounted secret of root, is that one's business.
    Root gets a warning, since containers run as root with secrets that all in them may read.
    """
    try:
        found = None if file is None else file.stat()
    except OSError:
        return  # Whoever reads it says so.
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077:
        return
    text = f"{file} has mode {mode:04o}: other users can get the secret in it; chmod 600 {file}"
    if os.geteuid() != 0:
        raise WrongUse(text)
    print(f"warning: {text}", file=sys.stderr)


def tls_of(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of a port; None without files, WrongUse with one of the two."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise WrongUse("TLS needs both --tls-cert FILE and --tls-key FILE; give the other one too")
    from twinbus.broker.port_access import server_context

    require_private(key)
    return server_context(certificate, key)
