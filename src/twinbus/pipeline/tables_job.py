"""The entry of earlier releases, kept for one: use `twinbus.pipeline.submit`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path and Path(sys.path[0]) == Path(__file__).resolve().parent:
    del sys.path[0]

from collections.abc import Sequence

from twinbus.pipeline import submit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job under its new name."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    moved = "python -m twinbus.pipeline.submit"
    print(f"twinbus: tables_job is now `{moved}`; the next release drops it", file=sys.stderr)
    return submit.main(given)


if __name__ == "__main__":
    sys.exit(main())
