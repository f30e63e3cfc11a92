"""The cable: carries IP packets between two network namespaces, and has faults on request.

    near  <-- tun device --  this process  -- tun device -->  far

Arguments: the process id whose namespace is the far one. It reads lines of JSON, each the fault
from then on, and prints `ready` when it carries packets, then after each line how many packets the
fault before it struck. The kernel needs no netem for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Literal

NEAR, FAR = "10.77.0.1", "10.77.0.2"
OTHER = "10.77.0.3"
"""A second address of the far side."""

MOVED = "10.77.0.4"
"""A third one, for a namespace that moves."""

MTU = 1400
"""Bytes of a packet, so that one read takes a whole one."""

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
TCP, SYN, RST, ACK = 6, 0x02, 0x04, 0x10
Side = Literal["near", "far"]


@dataclass
class Fault:
    """What the cable does to packets of the address `to`; without one to all."""

    to: str | None = None
    drop: tuple[str, ...] = ()
    """Sides whose packets are lost: `near` is a one-way partition of what the client sends."""
    loss: float = 0.0
    delay_s: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest time on the way; the order is kept."""
    after_bytes: int | None = None
    """Open connections are reset; new ones carry so many bytes from the near side, then nothing."""
    cut_every_s: float | None = None
    """Each connection is reset at these times."""


@dataclass(order=True)
class OnItsWay:
    due_s: float
    number: int
    target: int = field(compare=False)
    packet: bytes = field(compare=False)


def opened(name: str, address: str) -> int:
    """A tun device of the namespace that this process is in."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    for words in (
        f"addr add {address}/24 dev {name}",
        f"link set {name} mtu {MTU} up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return device


class Cable:
    def __init__(self, near: int, far: int) -> None:
        self._ends = {near: (far, "near"), far: (near, "far")}
        self._fault = Fault()
        self._struck = 0
        self._chance = random.Random(7)
        self._waiting: list[OnItsWay] = []
        self._numbers = itertools.count()
        self._latest_s = {near: 0.0, far: 0.0}
        self._carried: dict[tuple[bytes, bytes], int] = {}
        """Bytes of each connection that was opened under the fault."""
        self._cut_at: dict[tuple[bytes, bytes], float] = {}

    def set_fault(self, given: dict[str, Any]) -> int:
        """Replace the fault; returns how many packets the last one struck."""
        struck, self._struck = self._struck, 0
        self._fault = Fault(**given)
        self._carried.clear()
        self._cut_at.clear()
        return struck

    def run(self) -> None:
        buffered = b""
        while True:
            now = time.monotonic()
            while self._waiting and self._waiting[0].due_s <= now:
                due = heapq.heappop(self._waiting)
                self._put(due.target, due.packet)
            wait_s = self._waiting[0].due_s - now if self._waiting else None
            readable, _, _ = select.select([0, *self._ends], [], [], wait_s)
            for source in readable:
                if source != 0:
                    self._carry(source)
                    continue
                if not (more := os.read(0, 4_096)):
                    return
                *lines, buffered = (buffered + more).split(b"\n")
                for line in lines:
                    struck = self.set_fault(json.loads(line))
                    os.write(1, b"%d\n" % struck)

    def _carry(self, source: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(source, 65_536)
                if packet[0] >> 4 == 4:
                    self._take(source, packet)

    def _take(self, source: int, packet: bytes) -> None:
        target, side = self._ends[source]
        fault, now = self._fault, time.monotonic()
        far_address = packet[16:20] if side == "near" else packet[12:16]
        if fault.to is not None and far_address != address_bytes(fault.to):
            self._put(target, packet)
            return
        is_taken = side in fault.drop or self._chance.random() < fault.loss
        if is_taken or (packet[9] == TCP and self._is_spoiled(source, side, packet, now)):
            self._struck += 1
            return
        shortest, longest = fault.delay_s
        if not longest:
            self._put(target, packet)
            return
        due_s = max(now + self._chance.uniform(shortest, longest), self._latest_s[target])
        self._latest_s[target] = due_s
        heapq.heappush(self._waiting, OnItsWay(due_s, next(self._numbers), target, packet))

    def _is_spoiled(self, source: int, side: str, packet: bytes, now: float) -> bool:
        """Whether the fault takes this packet of a connection."""
        head = (packet[0] & 15) * 4
        ports, flags = packet[head : head + 4], packet[head + 13]
        mine, other = packet[12:16] + ports[:2], packet[16:20] + ports[2:]
        connection = (mine, other) if side == "near" else (other, mine)
        if self._fault.after_bytes is not None:
            if flags & SYN and side == "near":
                self._carried[connection] = 0
            if connection in self._carried:
                size = len(packet) - head - (packet[head + 12] >> 4) * 4
                self._carried[connection] += size if side == "near" else 0
                return self._carried[connection] > self._fault.after_bytes
            self._reset(source, packet, head)
            return True
        if self._fault.cut_every_s is None or flags & SYN:
            return False
        is_due = now >= self._cut_at.setdefault(connection, now + self._fault.cut_every_s)
        if is_due:
            del self._cut_at[connection]
            self._reset(source, packet, head)
        return is_due

    def _reset(self, source: int, packet: bytes, head: int) -> None:
        """End the connection of the packet at both of its ends."""
        target, _ = self._ends[source]
        sequence, acknowledged = packet[head + 4 : head + 8], packet[head + 8 : head + 12]
        ports, own, peer = packet[head : head + 4], packet[12:16], packet[16:20]
        self._put(target, reset(own, peer, ports, sequence, acknowledged))
        self._put(source, reset(peer, own, ports[2:] + ports[:2], acknowledged, sequence))

    def _put(self, target: int, packet: bytes) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(target, packet)


def address_bytes(text: str) -> bytes:
    return bytes(map(int, text.split(".")))


def reset(own: bytes, peer: bytes, ports: bytes, sequence: bytes, acknowledged: bytes) -> bytes:
    """A packet that resets a connection."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, TCP, 0) + own + peer
    segment = ports + sequence + acknowledged + struct.pack("!BBHHH", 0x50, RST | ACK, 0, 0, 0)
    pseudo = own + peer + struct.pack("!BBH", 0, TCP, len(segment))
    segment = segment[:16] + struct.pack("!H", ones_complement(pseudo + segment)) + segment[18:]
    return head[:10] + struct.pack("!H", ones_complement(head)) + head[12:] + segment


def ones_complement(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def enter_namespace(process_id: int) -> None:
    """Move this process to the network namespace of another."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{process_id}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the far namespace")


def main() -> None:
    near = opened("near0", NEAR)
    enter_namespace(int(sys.argv[1]))
    far = opened("far0", FAR)
    for address in (OTHER, MOVED):
        subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", "far0"], check=True)
    os.write(1, b"ready\n")
    Cable(near, far).run()


if __name__ == "__main__":
    main()
