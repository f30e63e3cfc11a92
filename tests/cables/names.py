"""The name server of the near side: each name has one address, which may change.

It takes the place of the machine's own for this process and its children, which need mounts of
their own (`unshare --mount`).
"""

from __future__ import annotations

import socket
import struct
import subprocess
import tempfile
import threading
from typing import Final

ADDRESS, PORT = "127.0.0.1", 53
RESOLV_CONF: Final = "/etc/resolv.conf"

HEAD: Final = struct.Struct("!HHHHHH")
ANSWERED, NO_SUCH_NAME = 0x8180, 0x8183
INTERNET, OF_ADDRESS = 1, 1
POINTER_TO_QUESTION: Final = 0xC00C


class Names:
    """Answers questions for addresses until the process ends."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.addresses = addresses
        """By name in lower case; a change holds for every later question."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, PORT))
        threading.Thread(target=self._serve, name="names", daemon=True).start()

    def _serve(self) -> None:
        while True:
            asked, asker = self._socket.recvfrom(4_096)
            self._socket.sendto(self._answer(asked), asker)

    def _answer(self, asked: bytes) -> bytes:
        words, at = [], HEAD.size
        while length := asked[at]:
            words.append(asked[at + 1 : at + 1 + length].decode())
            at += 1 + length
        question = asked[HEAD.size : at + 5]
        (number,) = struct.unpack_from("!H", asked)
        address = self.addresses.get(".".join(words).lower())
        if address is None:
            return HEAD.pack(number, NO_SUCH_NAME, 1, 0, 0, 0) + question
        if question[-4:] != struct.pack("!HH", OF_ADDRESS, INTERNET):
            return HEAD.pack(number, ANSWERED, 1, 0, 0, 0) + question
        # Nobody may keep it for a second.
        answer = struct.pack("!HHHIH", POINTER_TO_QUESTION, OF_ADDRESS, INTERNET, 0, 4)
        whole = answer + socket.inet_aton(address)
        return HEAD.pack(number, ANSWERED, 1, 1, 0, 0) + question + whole


def use_own_names() -> None:
    """Have this process and its children ask `Names`."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write(f"nameserver {ADDRESS}\n")
        settings.flush()
        # Its name goes, the file stays as long as the mount.
        subprocess.run(["mount", "--bind", settings.name, RESOLV_CONF], check=True)
