"""Serves a `Disk` as a file system, by the kernel's FUSE protocol on /dev/fuse.

    python -m tests.power_cut.fuse DIRECTORY

It says "ready" when the directory is mounted. A line "cut SEED SHARE NAMES" on its standard
input cuts the power: of the bytes and of the names that were not synced only these shares are left,
the kernel's caches are dropped, and the disk is there again. "flush" makes everything durable. The
end of its input unmounts the disk.

No library: the bindings need libfuse, which few machines have, and this needs twenty operations.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import sys
from collections.abc import Callable
from random import Random

from tests.power_cut.disk import PAGE_BYTES, ROOT, Directory, Disk, File

READ_MAX = 1024 * 1024
WRITE_MAX = READ_MAX - PAGE_BYTES
REQUEST = struct.Struct("<IIQQIIIHH")
ANSWER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
PROTOCOL = 7, 31
MNT_DETACH = 2
MS_NOSUID, MS_NODEV = 2, 4
SETS_SIZE, SETS_MODE = 8, 1
DISK_BYTES = 64 * 2**30
"""Free space as the broker sees it; it is memory, used as it is written."""

LIBC = ctypes.CDLL(None, use_errno=True)
Handler = Callable[[int, bytes], bytes]


class Server:
    """One mounted disk."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self._path = path
        self._handlers: dict[int, Handler] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 8: self._mknod, 9: self._mkdir,
            10: self._unlink, 11: self._unlink, 12: self._rename, 14: self._open, 15: self._read,
            16: self._write, 17: self._statfs, 18: _nothing, 20: self._fsync, 25: _nothing,
            26: self._init, 27: self._open, 28: self._readdir, 29: _nothing, 30: self._fsyncdir,
            35: self._create, 45: self._rename2,
        }  # fmt: skip
        self.mount()

    def mount(self) -> None:
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        ended = LIBC.mount(
            b"forgetful", self._path.encode(), b"fuse", MS_NOSUID | MS_NODEV, options.encode()
        )
        if ended:
            code = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(code, os.strerror(code), self._path)

    def unmount(self) -> None:
        # First, so that nothing waits for an answer: the kernel would write out what it holds.
        os.close(self.fd)
        LIBC.umount2(self._path.encode(), MNT_DETACH)

    def cut(self, seed: int, kept_share: float, kept_names: float) -> None:
        """Cut the power, and switch it on again."""
        self.unmount()
        self.disk.cut(Random(seed), kept_share, kept_names)
        self.mount()

    def serve_one(self) -> None:
        """Answer the next request of the kernel."""
        try:
            data = os.read(self.fd, READ_MAX)
        except InterruptedError:
            return
        except OSError as error:
            if error.errno == errno.ENOENT:  # A request that was taken back.
                return
            raise
        _, operation, unique, node, *_ = REQUEST.unpack_from(data)
        if operation in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET have no answer.
            return
        handler, code, body = self._handlers.get(operation), errno.ENOSYS, b""
        if handler is not None:
            try:
                body, code = handler(node, data[REQUEST.size :]), 0
            except OSError as caught:
                code = caught.errno or _code_of(caught)
        answer = ANSWER.pack(ANSWER.size + len(body), -code, unique) + body
        try:
            os.write(self.fd, answer)
        except OSError as caught:
            if caught.errno != errno.ENOENT:
                raise

    # Operations

    def _init(self, node: int, data: bytes) -> bytes:
        flags = BIG_WRITES | MAX_PAGES
        pages = WRITE_MAX // PAGE_BYTES
        return struct.pack(
            "<4I2H2I2HI28x", *PROTOCOL, READ_MAX, flags, 16, 12, WRITE_MAX, 1, pages, 0, 0
        )

    def _lookup(self, node: int, data: bytes) -> bytes:
        return self._entry(self.disk.find(node, _name(data)))

    def _getattr(self, node: int, data: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self.disk.nodes[node])

    def _setattr(self, node: int, data: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", data)
        found = self.disk.nodes[node]
        if valid & SETS_SIZE:
            self.disk.file(node).truncate(size)
        if valid & SETS_MODE:
            (mode,) = struct.unpack_from("<I", data, 68)
            found.mode = stat.S_IFMT(found.mode) | stat.S_IMODE(mode)
        return self._getattr(node, b"")

    def _mknod(self, node: int, data: bytes) -> bytes:
        (mode,) = struct.unpack_from("<I", data)
        return self._entry(self.disk.make(node, _name(data[16:]), mode))

    def _mkdir(self, node: int, data: bytes) -> bytes:
        (mode,) = struct.unpack_from("<I", data)
        return self._entry(self.disk.make(node, _name(data[8:]), stat.S_IFDIR | mode))

    def _unlink(self, node: int, data: bytes) -> bytes:
        self.disk.remove(node, _name(data))
        return b""

    def _rename(self, node: int, data: bytes) -> bytes:
        (new_parent,) = struct.unpack_from("<Q", data)
        name, new_name = data[8:].split(b"\0")[:2]
        self.disk.rename(node, name.decode(), new_parent, new_name.decode())
        return b""

    def _rename2(self, node: int, data: bytes) -> bytes:
        new_parent, flags = struct.unpack_from("<QI", data)
        if flags:
            raise OSError(errno.EINVAL, "flags of a rename")
        return self._rename(node, struct.pack("<Q", new_parent) + data[16:])

    def _open(self, node: int, data: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _create(self, node: int, data: bytes) -> bytes:
        _, mode = struct.unpack_from("<II", data)
        made = self.disk.make(node, _name(data[16:]), stat.S_IFREG | stat.S_IMODE(mode))
        return self._entry(made) + self._open(made.number, b"")

    def _read(self, node: int, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        return self.disk.file(node).now.read(offset, size)

    def _write(self, node: int, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        self.disk.file(node).write(offset, data[40 : 40 + size])
        return struct.pack("<II", size, 0)

    def _fsync(self, node: int, data: bytes) -> bytes:
        self.disk.file(node).sync()
        return b""

    def _fsyncdir(self, node: int, data: bytes) -> bytes:
        self.disk.sync_names(node)
        return b""

    def _readdir(self, node: int, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        listing = b""
        names = [".", "..", *self.disk.directory(node).now]
        numbers = [node, ROOT, *self.disk.directory(node).now.values()]
        for position in range(offset, len(names)):
            name = names[position].encode()
            kind = stat.S_IFMT(self.disk.nodes[numbers[position]].mode) >> 12
            entry = struct.pack("<QQII", numbers[position], position + 1, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if len(listing) + len(entry) > size:
                break
            listing += entry
        return listing

    def _statfs(self, node: int, data: bytes) -> bytes:
        blocks = DISK_BYTES // PAGE_BYTES
        counts = blocks, blocks, blocks, 2**20, 2**20
        return struct.pack("<5Q4I24x", *counts, PAGE_BYTES, 255, PAGE_BYTES, 0)

    # Parts of answers

    def _entry(self, node: File | Directory) -> bytes:
        return struct.pack("<4Q2I", node.number, 0, 0, 0, 0, 0) + self._attributes(node)

    def _attributes(self, node: File | Directory) -> bytes:
        size = node.now.size if isinstance(node, File) else PAGE_BYTES
        links = 1 if isinstance(node, File) else 2
        owner = os.getuid(), os.getgid()
        times = 0, 0, 0, 0, 0, 0
        return ATTRIBUTES.pack(
            node.number, size, -(-size // 512), *times, node.mode, links, *owner, 0, PAGE_BYTES, 0
        )


def _nothing(node: int, data: bytes) -> bytes:
    return b""


def _name(data: bytes) -> str:
    return data.partition(b"\0")[0].decode()


def _code_of(error: OSError) -> int:
    codes = {
        FileNotFoundError: errno.ENOENT,
        FileExistsError: errno.EEXIST,
        NotADirectoryError: errno.ENOTDIR,
        IsADirectoryError: errno.EISDIR,
    }
    return codes.get(type(error), errno.EIO)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(path: str) -> None:
    server = Server(Disk(), path)
    _say("ready")
    try:
        while True:
            for ready in select.select([server.fd, sys.stdin.fileno()], [], [])[0]:
                if ready == server.fd:
                    server.serve_one()
                    continue
                line = sys.stdin.readline().split()
                if not line:
                    return
                if line[0] == "flush":
                    server.disk.flush()
                else:
                    server.cut(int(line[1]), float(line[2]), float(line[3]))
                _say("done")
    finally:
        server.unmount()


if __name__ == "__main__":
    main(sys.argv[1])
