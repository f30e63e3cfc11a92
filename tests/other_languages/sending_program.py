"""A client program that sends numbered messages until it is stopped, and what it said of each."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from twinbus.amqp.message import data_sections, split

STOP_LIMIT_S = 120.0
"""An end of patience: the send in progress may have to wait for a failover."""


@dataclass(frozen=True, slots=True)
class Send:
    """One send: the texts of its messages, and how it ended."""

    texts: tuple[str, ...]
    has_ids: bool
    """Whether the ids of the messages are their texts; otherwise the client gave them none."""
    began_s: float
    ended_s: float
    error: str | None


def text_of(payload: bytes) -> str:
    """The text of a message that such a program sent."""
    [body] = data_sections(split(payload).body)
    # The JavaScript SDK sends a text as JSON.
    return bytes(body).decode().strip('"')


class SendingProgram:
    """The program as a process; as a context manager, gone after it."""

    def __init__(
        self, command: Sequence[str], connection_string: str, queue: str, name: str, log: Path
    ) -> None:
        """`name` begins the text of every message; `log` gets what the SDK writes to stderr."""
        self.name = name
        self.sends: list[Send] = []
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*command, queue, name],
                env={**os.environ, "SERVICEBUS_CONNECTION_STRING": connection_string},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def accepted(self) -> set[str]:
        """The texts of all messages that were accepted."""
        return {text for send in self.sends if send.error is None for text in send.texts}

    @property
    def errors(self) -> list[str]:
        return [f"{send.texts}: {send.error}" for send in self.sends if send.error is not None]

    def has_sent_since(self, time_s: float, count: int = 1) -> bool:
        """Whether so many sends that began after this moment have ended; raises if it ended."""
        if self._process.poll() is not None:
            said = self._log.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}: {said}")
        return sum(send.began_s >= time_s for send in self.sends) >= count

    def stop(self) -> int:
        """Let the send in progress end; the exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(STOP_LIMIT_S)
        self._reader.join()
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                read = json.loads(line)
                self.sends.append(
                    Send(
                        tuple(read["texts"]),
                        read["has_ids"],
                        read["began_ms"] / 1_000,
                        read["ended_ms"] / 1_000,
                        read.get("error"),
                    )
                )
