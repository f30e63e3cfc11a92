"""`twinbus page`."""

from __future__ import annotations

from twinbus.console.options import SECRETS
from twinbus.console.page.options import PageOptions
from twinbus.console.terminal.command import command, command_group

app = command_group("")


@command(app, "twinbus page --ledger ./ledger", note=SECRETS)
def page(given: PageOptions) -> int:
    """Show and steer the pairs of this host in a browser.

    The command prints an address with a token and runs until Ctrl-C or SIGTERM. Beyond loopback it
    needs TLS and tokens from files.
    """
    from twinbus.console.page.commands import run

    return run(given)
