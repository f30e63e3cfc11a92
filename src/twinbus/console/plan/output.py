"""The forms in which `twinbus plan` prints a plan."""

from enum import StrEnum


class PlanOutput(StrEnum):
    """The value of `--output`."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
