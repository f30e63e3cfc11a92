"""Drains that the page starts: `twinbus syphon drain` in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

from twinbus.console.page.options import PageOptions
from twinbus.page.sources.jobs import JobResult, JobRunner


class PageDrains:
    """Drains backlogs between the two namespaces that the page was started with."""

    def __init__(self, given: PageOptions, jobs: JobRunner) -> None:
        """WrongUse if a namespace is missing or not valid."""
        primary, secondary = given.both
        self._places = primary.endpoint, secondary.endpoint
        self._jobs = jobs

    def moves(self, primary: str, secondary: str) -> bool:
        """Return whether both namespaces are those that the page was started with."""
        return (primary, secondary) == self._places

    def drain(self, label: str, path: str | None, ended: Callable[[JobResult], None]) -> bool:
        """Start a drain of all destinations or of one; False: one of this label runs."""
        arguments = ["syphon", "drain", f"--label={label}"]
        arguments += [] if path is None else [f"--only={path}"]
        return self._jobs.start(f"drain {label}", arguments, ended)


def command_environment(given: PageOptions) -> dict[str, str]:
    """Return the variables of a command about the same namespaces; secrets are not on its line."""
    values = {
        "TWINBUS_PRIMARY": given.primary,
        "TWINBUS_SECONDARY": given.secondary,
        "TWINBUS_CREDENTIAL": given.credential,
        "TWINBUS_TRANSPORT": given.transport,
        "TWINBUS_PROXY": given.proxy,
        "TWINBUS_ENDPOINT": given.endpoint,
        "TWINBUS_LEDGER": given.ledger,
    }
    return {name: value for name, value in values.items() if value}
