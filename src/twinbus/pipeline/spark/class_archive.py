"""The classes of Spark in one file, from which a JVM starts with about 40 % less processor time.

Java calls this class data sharing. The first session whose command works on tables (`record`)
writes the file when its JVM ends, after the command has returned; later sessions use it.

    <cache>/spark-<key>.<size>.jsa   the archive for one Java and one Spark
    <cache>/spark-<key>.<name>.new   one that a JVM is to write, empty until then

Nothing depends on it: Java passes over an archive that does not fit its own version or the jars,
and a cache that cannot be written to, or that others can write to, has none. Several JVMs may write
at once, each to a name of its own; the next session renames what it finds complete. Java would
crash with one that was cut off later: its size must be that of its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.pipeline.spark.cache import cache_directory, is_trusted, prepare_cache
from twinbus.pipeline.spark.java import Java, java_version_text

SWITCH: Final = "TWINBUS_SPARK_ARCHIVE"
"""Set it to `off` to have no archive."""

KEPT: Final = 3
"""Archives of other Javas and Sparks that stay, those used last: each has up to 200 MB."""

RECORDING_S: Final = 3_600.0
"""After this time a session that was to write an archive is no longer waited for."""

MEMORY_MIN_BYTES: Final = 4 << 30
"""On a machine with less none is written: the JVM takes 1.4 GB for it, for some seconds."""

_MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
"""The limit of a container; the text `max` means no limit."""

_SAFE_PATH: Final = re.compile(r"[\w/.@+=,~ -]+", re.ASCII)
"""Java's options give a meaning to some characters, such as a colon."""

_HOTSPOT: Final = "Server VM"
"""What every Java that knows these options calls itself; OpenJ9 does not."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """What one JVM does with the archive."""

    path: Path
    is_recorded: bool
    """Whether it writes the archive when it ends, else it starts from it."""

    @property
    def option(self) -> str:
        """The option of Java, quoted as Spark wants it."""
        name = "ArchiveClassesAtExit" if self.is_recorded else "SharedArchiveFile"
        return f'"-XX:{name}={self.path}"'

    def discard(self) -> None:
        """Remove the archive: a JVM did not start with it."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def class_archive(
    java: Java, spark_home: str, environment: Mapping[str, str], *, record: bool, now: float
) -> ClassArchive | None:
    """The archive for a JVM that is about to start, or None if it does without.

    `record`: this JVM writes the archive if there is none yet. `now` is in unix seconds.
    """
    cache = cache_directory(environment)
    version = java_version_text(java.home / "bin" / "java") or ""
    is_off = environment.get(SWITCH, "").strip().lower() == "off"
    if is_off or _HOTSPOT not in version or not _SAFE_PATH.fullmatch(str(cache)):
        return None
    if cache.exists() and not is_trusted(cache):
        return None
    name = f"spark-{_key(version, spark_home, environment)}"
    try:
        return _found(cache, name, now) or (_recording(cache, name, now) if record else None)
    except OSError:
        return None


def _key(version: str, spark_home: str, environment: Mapping[str, str]) -> str:
    """A digest of what Java compares: its own build and the class path."""
    jars = Path(spark_home, "jars")
    # A jar that is replaced changes its directory.
    changed_ns = jars.stat().st_mtime_ns if jars.is_dir() else 0
    more = [environment.get(name, "") for name in ("SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH")]
    parts = "\0".join([version, spark_home, str(changed_ns), *more])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _found(cache: Path, name: str, now: float) -> ClassArchive | None:
    """The archive that is there, or that another session has completed."""
    for archive in cache.glob(f"{name}.*.jsa"):
        if not is_trusted(archive):
            continue
        if archive.name == f"{name}.{archive.stat().st_size}.jsa":
            # The time of the last use, for `_remove_others`. An archive of an image is another's.
            with contextlib.suppress(OSError):
                os.utime(archive, (now, now))
            return ClassArchive(archive, is_recorded=False)
        archive.unlink(missing_ok=True)
    for new in cache.glob(f"{name}.*.new"):
        if _is_complete(new):
            # Java made it with the mask of its session.
            new.chmod(0o600)
            archive = new.replace(cache / f"{name}.{new.stat().st_size}.jsa")
            _remove_others(cache, archive)
            return ClassArchive(archive, is_recorded=False)
    return None


def _recording(cache: Path, name: str, now: float) -> ClassArchive | None:
    """A new archive to be written, unless another session is about to or memory is short."""
    if memory_bytes() < MEMORY_MIN_BYTES:
        return None
    for new in cache.glob("spark-*.new"):
        if now - new.stat().st_mtime > RECORDING_S:
            new.unlink(missing_ok=True)
        elif new.name.startswith(f"{name}."):
            return None
    prepare_cache(cache)
    handle, path = tempfile.mkstemp(dir=cache, prefix=f"{name}.", suffix=".new")
    os.close(handle)
    os.utime(path, (now, now))
    return ClassArchive(Path(path), is_recorded=True)


def memory_bytes(limit: Path = _MEMORY_LIMIT) -> int:
    """The memory that this process may have at most, where the file has the container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(limit.read_text()))
    except (OSError, ValueError):
        return machine


def _is_complete(new: Path) -> bool:
    """Whether a JVM has written all of it: it writes the head of the file last."""
    with new.open("rb") as file:
        if not any(file.read(4)):
            return False
        # After a loss of power the head could be there without the rest.
        os.fsync(file.fileno())
        return True


def _remove_others(cache: Path, archive: Path) -> None:
    """Remove the archives that were not used for longest."""
    others = [(path.stat().st_mtime, path) for path in cache.glob("spark-*.jsa") if path != archive]
    for _, path in sorted(others, reverse=True)[KEPT:]:
        path.unlink(missing_ok=True)
