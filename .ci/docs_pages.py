"""The pages of the site that are written from the code: `make docs`.

    api.md         public names, from signatures and docstrings
    commands.md    every command of `twinbus`, from its --help
    schema.md      every column of the tables, from the schemas

`GENERATED` has them by name. They are not in the repository.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

import twinbus
import twinbus.pipeline
import twinbus.testing
from twinbus import blocking, errors
from twinbus.console.cli import app
from twinbus.pairing.core.processing import ProcessSettings
from twinbus.pipeline.tables.gold import TABLE_COMMENTS, kept_tables, stored_schemas
from twinbus.status.document import BacklogQueueStatus, EntityStatus

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"

_API: Final = """\
# API

Every public name with its signature. `twinbus` is for asyncio. `twinbus.blocking` has the same
methods without `await`, for other code: {blocking}. Names that are not on this page can change
without notice.
"""

_OPTIONS = """\
`SendAvailabilityOptions` is described in [options](options.md), `Verdict` and `classify` in
[failures](failures.md#what-counts).
"""

_MESSAGES = """
*Messages* are one `ServiceBusMessage`, `AmqpAnnotatedMessage` or mapping, or any iterable of them.
`MessageSender` is a [protocol](from-sdk.md#annotations) with these methods, which the SDK's
`ServiceBusSender` has too. Receivers are [the SDK's own](from-sdk.md#what-is-different).
"""


_SCHEMA: Final = """\
# The tables and their columns

This page is for users who query the tables: every stored table, every column, its type and its
meaning. [Tables](tables.md) says how they are made and how other tools read them. The comments are
also in the catalog of the tables (Delta's log), and in the schemas of the DataFrames that
`twinbus.pipeline.read_tables` returns.

Sums are marked: of several rows with the same other columns, add them up.
"""

_COMMANDS: Final = """\
# Commands

Every command of `twinbus` with its options, as `twinbus COMMAND --help` shows them.
`twinbus --install-completion` adds completion to your shell.
[Credentials](credentials.md) describes `sb://HOST`, `--credential` and the network route,
[options](options.md#environment) the environment variables, [production](production.md#rights)
the rights that each command needs.
"""

PROCESSOR: Final = ("run_until_stopped", "stop", "stop_soon")

TRANSACTED: Final = ("transaction", "transactions")
RECEIVED: Final = ("get_queue_receiver", "get_subscription_receiver")

SHARED_MIN: Final = 4
"""An option that as many commands have is described once."""


def api_page() -> str:
    """Return the page of public names."""
    names = ", ".join(f"`{name}`" for name in sorted(blocking.__all__))
    events = [name for name in twinbus.__all__ if issubclass_of(name, twinbus.PairEvent)]
    parts = [
        _API.format(blocking=names),
        function("pair_namespaces", twinbus.pair_namespaces),
        table("Pair", twinbus.Pair),
        table("PairSide", twinbus.PairSide, "`pair.primary` and `pair.secondary`."),
        table("PrimarySide", twinbus.PrimarySide, "`pair.primary`.", only=TRANSACTED),
        table("Namespace", twinbus.Namespace, only=("__init__", "from_connection_string")),
        _OPTIONS,
        table("PairedSender", twinbus.PairedSender) + _MESSAGES,
        function("process", twinbus.process),
        table(
            "Processor", twinbus.Processor, "Made by `pair.process` and `process`.", only=PROCESSOR
        ),
        function("transactions", twinbus.transactions),
        table("Transactions", twinbus.Transactions, only=(*RECEIVED, "transaction", "close")),
        table("Transaction", twinbus.Transaction),
        attributes("Options of a processor", ProcessSettings, "Keywords of both."),
        attributes("PairStatus", twinbus.PairStatus, "What `pair.status()` returns."),
        attributes("EntityStatus", EntityStatus, "The values of `status.entities`."),
        attributes("BacklogQueueStatus", BacklogQueueStatus, "Those of `status.backlog_queues`."),
        "## Events\n\n`async for event in pair.events()` (an `EventStream`), or `pair.on_event"
        "(callback)`. Each has `at` in unix seconds, and `as_dict()`.\n\n"
        + rows("event | meaning", ((_fields(name), _first(_named(name))) for name in events)),
        "## Errors\n\n```text\n" + _tree() + "```\n",
        table("EmbeddedBroker", twinbus.EmbeddedBroker, "Extra `broker`."),
        "`Fault` is described in [faults on request](broker.md#faults-on-request).\n",
        exported("twinbus.testing", twinbus.testing, "[Testing](testing.md); extra `testing`."),
        exported("twinbus.pipeline", twinbus.pipeline, "[Tables](tables.md); extra `spark`."),
        "## twinbus.kombu\n\n`Transport`: [Celery and kombu](celery.md); extra `celery`.\n",
        "## Elsewhere\n\nWhat examples of other pages import.\n\n"
        + rows("name | meaning", (_shown(*one) for one in elsewhere())),
    ]
    return "\n".join(parts)


def issubclass_of(name: str, kind: type) -> bool:
    """Whether the public name is a class of this kind."""
    value = _named(name)
    return isinstance(value, type) and issubclass(value, kind)


def elsewhere() -> list[tuple[str, str, str]]:
    """Page, module and name of each import in an example, from modules without a section here."""
    own = ("twinbus", "twinbus.blocking", "twinbus.kombu", "twinbus.pipeline", "twinbus.testing")
    line = re.compile(r"^from (twinbus[\w.]*) import (.*)$", re.MULTILINE)
    found = {
        (path.name, module, name.strip())
        for path in DOCS.glob("*.md")
        for module, names in line.findall(path.read_text())
        for name in names.partition("#")[0].split(",")
        if module not in own
    }
    return sorted(found)


def _shown(document: str, module: str, name: str) -> tuple[str, str]:
    value = getattr(import_module(module), name)
    return f"`{module}.{name}`, [{document.removesuffix('.md')}]({document})", _first(value)


def function(title: str, value: object) -> str:
    return f"## {title}\n\n`{title}{_function(value)}`\n\n{_first(value)}\n"


def table(
    title: str,
    kind: type,
    note: str = "",
    *,
    only: tuple[str, ...] = (),
) -> str:
    """The public methods and properties of a class."""
    found = []
    members = {name: one for base in kind.__mro__[-2::-1] for name, one in vars(base).items()}
    for name, member in members.items():
        is_shown = name in only or not (only or name.startswith("_"))
        shown = title if name == "__init__" else name
        if not is_shown:
            continue
        if isinstance(member, property):
            found.append((f"`{shown}`", _first(member.fget)))
        elif isinstance(member, FunctionType | classmethod):
            function = getattr(kind, name)
            prefix = "await " if inspect.iscoroutinefunction(function) else ""
            found.append((f"`{prefix}{shown}{_function(function)}`", _first(function)))
    head = f"## {title}\n\n{' '.join(filter(None, [_first(kind), note]))}\n\n"
    return head + rows("method or attribute | meaning", found)


def attributes(title: str, kind: type, note: str) -> str:
    """The fields of a dataclass with the texts below them."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    texts = {
        ast.unparse(above.target): _plain(str(node.value.value))
        for above, node in pairwise(body.body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
    }
    found = [
        (f"`{field.name}`: `{field.type}`", texts.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]
    return f"## {title}\n\n{note}\n\n" + rows("attribute | meaning", found)


def exported(title: str, module: ModuleType, note: str) -> str:
    names = sorted(module.__all__)
    return f"## {title}\n\n{note}\n\n" + rows(
        "name | meaning", ((f"`{name}`", _first(getattr(module, name))) for name in names)
    )


def rows(head: str, found: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {head} |", "|---|---|"]
    # The site keeps a bar inside code as it is; with a backslash it would show both.
    lines += [f"| {name} | {text} |" for name, text in found]
    return "\n".join(lines) + "\n"


def _named(name: str) -> object:
    return getattr(twinbus, name)


def _fields(name: str) -> str:
    kind = _named(name)
    assert isinstance(kind, type)
    own = [field.name for field in dataclasses.fields(kind) if field.name != "at"]
    return f"`{name}({', '.join(own)})`" if own else f"`{name}`"


def _function(function: object) -> str:
    """A signature as users call it."""
    assert callable(function)
    text = str(inspect.signature(function)).replace("'", "").replace(", **unknown: Never", "")
    text = re.sub(r"\((?:self|cls)(?:, )?", "(", text)
    return text.removesuffix(" -> None")


def _first(value: object) -> str:
    """The first paragraph of an object's own docstring; an alias of a type as it is."""
    if not isinstance(value, type | FunctionType | MethodType):
        return f"`{re.sub(r'[a-z_.]+[.](?=[A-Z])', '', str(value))}`"
    return _plain((value.__doc__ or "").partition("\n\n")[0])


def _plain(text: str) -> str:
    """One line for a cell of a table; the name of a page in docs/ becomes a link."""
    line = re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](\1.md)", " ".join(text.split()))
    return line.replace("|", "\\|")


def _tree() -> str:
    """The tree of errors that the docstring of the module draws."""
    lines = (errors.__doc__ or "").splitlines()
    drawn = [line.removeprefix("    ") for line in lines if re.match(r" {4}(\w| +[|+])", line)]
    return "\n".join(drawn) + "\n"


def schema_page() -> str:
    """Return the page of tables and columns."""
    sums = {table.name: table.sums for table in kept_tables()}
    parts = [_SCHEMA]
    for name, schema in stored_schemas().items():
        columns = [
            f"| `{one.name}` | {one.dataType.simpleString()}"
            f"{', sum' if one.name in sums.get(name, ()) else ''} | {one.metadata['comment']} |"
            for one in schema
        ]
        head = ["| column | type | meaning |", "|---|---|---|"]
        parts.append("\n".join([f"## {name}", "", TABLE_COMMENTS[name], "", *head, *columns, ""]))
    return "\n".join(parts)


def commands_page() -> str:
    """Return the page of commands: help, exit status, example and options of each."""
    root = get_command(app)
    found = list(commands_of(root, "twinbus"))
    counts = Counter(record for _, command in found for record in _records(command))
    # One meaning for each name: the most common one. Another meaning stands at its commands.
    common = {of: (of, text) for (of, text), count in reversed(counts.most_common())}
    shared = {one for one in common.values() if one[0][0] == "-" and counts[one] >= SHARED_MIN}
    parts = [_COMMANDS, _paragraphs(root.epilog or "")]
    for name, command in found:
        records = _records(command)
        own = [record for record in records if record not in shared]
        others = ", ".join(f"`{of}`" for of, text in records if (of, text) in shared)
        parts += [
            f"##{'#' * (name.count(' ') > 1)} {name}\n",
            _paragraphs(command.help or ""),
            _paragraphs(command.epilog or ""),
            *([_option_rows(own)] if own else []),
            *([f"Also [below](#options-of-many-commands): {others}.\n"] if others else []),
        ]
    parts += ["## Options of many commands\n", _option_rows(sorted(shared))]
    return "\n".join(part for part in parts if part)


def commands_of(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every group and command below one, with the words that call it."""
    for word, below in command.commands.items():
        yield f"{name} {word}", below
        if isinstance(below, TyperGroup):
            yield from commands_of(below, f"{name} {word}")


def _records(command: Any) -> list[tuple[str, str]]:
    """Return arguments and options as --help shows them: names with their value, and meaning."""
    context = typer.Context(command, info_name="twinbus")
    found = (parameter.get_help_record(context) for parameter in command.params)
    kind = re.compile(r" <(?:str|int|int range|float|list\[str\])>$")
    return [(kind.sub("", of).strip(), text) for of, text in filter(None, found)]


def _option_rows(records: Iterable[tuple[str, str]]) -> str:
    return rows("option | meaning", ((f"`{of}`", _plain(text)) for of, text in records))


def _paragraphs(text: str) -> str:
    """Return paragraphs of help as Markdown; lines that --help keeps as they are become code."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.startswith("\b\n"):
            lines = part.removeprefix("\b\n").removeprefix("Example: ").splitlines()
            found.append("\n".join(f"    {line}" for line in lines))
        else:
            found.append(" ".join(part.split()))
    return "\n\n".join(found) + "\n"


GENERATED: Final[dict[str, Callable[[], str]]] = {
    "api.md": api_page,
    "commands.md": commands_page,
    "schema.md": schema_page,
}
"""The text of each page, by its path on the site."""
