"""`twinbus page` and its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.options import SECRETS, PricesOption, SidesOptions
from twinbus.console.terminal.command import command, command_group, flag, option, setting

app = command_group("")


@dataclass(frozen=True, kw_only=True, repr=False)
class PageOptions(SidesOptions):
    """The options of `twinbus page`."""

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


@command(app, "twinbus page --ledger ./ledger", note=SECRETS)
def page(given: PageOptions) -> int:
    """Show and steer the pairs of this host in a browser.

    The command prints an address with a token and runs until Ctrl-C or SIGTERM. Beyond loopback it
    needs TLS and tokens from files.
    """
    from twinbus.console.page.commands import run

    return run(given)
