"""The files of a URL through the running Spark, with its credentials, as a file system of pyarrow.

For places that delta-rs does not know, or has no credentials for: what Spark reads and writes there
as a job, this process then lists, reads and writes through the same Hadoop. It needs a classic
session: Spark Connect has no JVM here.

Only file systems that rename atomically, and never onto another file, are in `SCHEMES`: a commit is
such a rename. Those of S3 and Google are not.
"""

from __future__ import annotations

import io
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pa_fs  # type: ignore[import-untyped]

from twinbus.pipeline.spark import classic

_AZURE: Final = ("abfss", "abfs")
SCHEMES: Final = (*_AZURE, "viewfs", "webhdfs", "swebhdfs")

_KEYS: Final = ("AZURE_STORAGE_", "AZURE_CLIENT_")
"""Beginnings of environment variables with which delta-rs has credentials of its own there."""

DRAFT_SUFFIX: Final = ".draft"
"""Of a hidden file that gets its name once it is whole."""

_LACKED: Final = "org.apache.hadoop.shaded.org.glassfish.jersey"
"""A package that Hadoop 3.5's client for WebHDFS needs to read a refusal, and comes without."""

_PIECE_BYTES: Final = 1 << 20
"""What one call brings from the JVM, or takes to it."""


def hadoop_files(place: str) -> HadoopFiles | None:
    """Return the file system of a place that is left to Spark; None if delta-rs opens it."""
    scheme, separator, _ = place.partition("://")
    if not separator or scheme not in SCHEMES:
        return None
    if scheme in _AZURE and any(name.startswith(_KEYS) for name in os.environ):
        return None
    # Without pyspark loaded there is no session; loading it to check would cost 0.2 s.
    session = classic.running_session() if "pyspark.sql" in sys.modules else None
    if session is not None:
        return HadoopFiles(*classic.hadoop_of(session), place)
    if scheme in _AZURE:
        return None
    raise OSError(f"only Spark reaches {scheme}://, and this process has no classic session of it")


class HadoopFiles(pa_fs.FileSystemHandler):  # type: ignore[misc]
    """A directory and what is below it; names are relative to it."""

    def __init__(self, bridge: Any, configuration: Any, root: str) -> None:
        self._bridge, self._root = bridge, root.rstrip("/")
        self._java = bridge.jvm.org.apache.hadoop.fs
        at = self._java.Path(self._root)
        self._files = at.getFileSystem(configuration)
        self._context = self._java.FileContext.getFileContext(at.toUri(), configuration)

    def add(self, name: str, content: bytes) -> None:
        """Make a file, whole or not at all; FileExistsError if there is one."""
        draft = f"{name.rpartition('/')[0]}/.{uuid.uuid4().hex}{DRAFT_SUFFIX}"
        with self.open_output_stream(draft, {}) as stream:
            stream.write(content)
        try:
            self._rename(draft, name)
        except OSError as error:
            # Of two that rename at once, some file systems tell the second only that it failed.
            is_second = self._files.delete(self._path(draft), False) and self._is_there(name)
            if is_second and not isinstance(error, FileExistsError):
                raise FileExistsError(str(error)) from error
            raise

    def get_type_name(self) -> str:
        return "hadoop"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        try:
            return list(self._below(selector.base_dir, recursive=selector.recursive))
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise

    def create_dir(self, path: str, recursive: bool) -> None:
        with _in_python():
            self._files.mkdirs(self._path(path))

    def delete_dir(self, path: str) -> None:
        with _in_python():
            self._files.delete(self._path(path), True)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        with _in_python():
            if not self._files.delete(self._path(path), False):
                raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        self._rename(src, dest, "OVERWRITE")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        with _in_python():
            path = self._path(path)
            raw = _Input(self._files.open(path), self._files.getFileStatus(path).getLen())
        return pa.PythonFile(io.BufferedReader(raw, _PIECE_BYTES), mode="r")

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> Any:
        with _in_python():
            raw = _Output(self._files.create(self._path(path), True))
        return pa.PythonFile(io.BufferedWriter(raw, _PIECE_BYTES), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> Any:
        raise NotImplementedError

    def _path(self, name: str) -> Any:
        return self._java.Path(f"{self._root}/{name}".rstrip("/"))

    def _rename(self, name: str, new: str, *how: str) -> None:
        """Rename a file, also onto another one if `how` says so."""
        kind = getattr(self._java, "Options$Rename")
        options = self._bridge.new_array(kind, len(how))
        for index, one in enumerate(how):
            options[index] = getattr(kind, one)
        with _in_python():
            self._context.rename(self._path(name), self._path(new), options)

    def _is_there(self, name: str) -> bool:
        return bool(self._info(name).type != pa_fs.FileType.NotFound)

    def _info(self, name: str) -> Any:
        try:
            with _in_python():
                return _info_of(name, self._files.getFileStatus(self._path(name)))
        except FileNotFoundError:
            return pa_fs.FileInfo(name, pa_fs.FileType.NotFound)

    def _below(self, directory: str, *, recursive: bool) -> Iterator[Any]:
        with _in_python():
            found = list(self._files.listStatus(self._path(directory)))
        for status in found:
            name = f"{directory}/{status.getPath().getName()}".lstrip("/")
            info = _info_of(name, status)
            yield info
            if recursive and not info.is_file:
                yield from self._below(name, recursive=True)


class _Input(io.RawIOBase):
    """A file that Java reads."""

    def __init__(self, stream: Any, size_bytes: int) -> None:
        self._stream, self._size_bytes, self._at = stream, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size_bytes - self._at)
        if count <= 0:
            return 0
        with _in_python():
            if self._stream.getPos() != self._at:
                self._stream.seek(self._at)
            piece: bytes = self._stream.readNBytes(count)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class _Output(io.RawIOBase):
    """A file that Java writes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        with _in_python():
            self._stream.write(bytes(content))
        return len(content)

    def close(self) -> None:
        if not self.closed:
            with _in_python():
                self._stream.close()
        super().close()


def _info_of(name: str, status: Any) -> Any:
    if status.isDirectory():
        return pa_fs.FileInfo(name, pa_fs.FileType.Directory)
    changed_ns = status.getModificationTime() * 1_000_000
    return pa_fs.FileInfo(name, pa_fs.FileType.File, size=status.getLen(), mtime_ns=changed_ns)


@contextmanager
def _in_python() -> Iterator[None]:
    """Raise what Java raises as OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        line = classic.telling_line(error)
        if _LACKED in str(error):
            raise OSError(
                "the Hadoop of this Spark (3.5, in 4.2 and 4.3) cannot read WebHDFS's refusals, so"
                " no file can be looked for: use hdfs:// or Spark 4.1"
            ) from error
        if "FileNotFoundException" in line:
            raise FileNotFoundError(line) from error
        if "FileAlreadyExistsException" in line:
            raise FileExistsError(line) from error
        raise OSError(line) from error
