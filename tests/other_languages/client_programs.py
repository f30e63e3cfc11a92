"""Client programs that send or receive until they are stopped, and what they said."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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


class ClientProgram(ABC):
    """A program as a process; as a context manager, gone after it."""

    def __init__(
        self, command: Sequence[str], connection_string: str, name: str, log: Path
    ) -> None:
        """`log` gets what the SDK writes to stderr."""
        self.name = name
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
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
        self.kill()

    def kill(self) -> None:
        """End the process; what it printed until then is read."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        self._process.stdin.close()

    @abstractmethod
    def take(self, line: dict[str, Any]) -> None:
        """Take a line that the program printed."""

    def require_running(self) -> None:
        """Raise if the program has ended by itself."""
        if self._process.poll() is not None:
            said = self._log.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}: {said}")

    def stop(self) -> int:
        """Let what is in progress end; the exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(STOP_LIMIT_S)
        self._reader.join()
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # A program that was killed may have left half a line.
                if line.endswith("\n"):
                    self.take(json.loads(line))


class SendingProgram(ClientProgram):
    """A program that sends numbered messages."""

    def __init__(
        self, command: Sequence[str], connection_string: str, queue: str, name: str, log: Path
    ) -> None:
        """`name` begins the text of every message."""
        self.sends: list[Send] = []
        super().__init__([*command, queue, name], connection_string, name, log)

    def take(self, line: dict[str, Any]) -> None:
        began_s, ended_s = line["began_ms"] / 1_000, line["ended_ms"] / 1_000
        texts = tuple(line["texts"])
        self.sends.append(Send(texts, line["has_ids"], began_s, ended_s, line.get("error")))

    @property
    def accepted(self) -> set[str]:
        """The texts of all messages that were accepted."""
        return {text for send in self.sends if send.error is None for text in send.texts}

    @property
    def errors(self) -> list[str]:
        return [f"{send.texts}: {send.error}" for send in self.sends if send.error is not None]

    def has_sent_since(self, time_s: float, count: int = 1) -> bool:
        """Whether this many sends that began after this moment have ended; raises if it ended."""
        self.require_running()
        return sum(send.began_s >= time_s for send in self.sends) >= count


@dataclass(slots=True)
class Receive:
    """One message that a program received."""

    text: str
    message_id: str
    number: int
    """The sequence number."""
    at_s: float
    is_completed: bool = False
    """Whether its completion was confirmed."""


class ReceivingProgram(ClientProgram):
    """The program beside one that sends: it receives and completes what comes."""

    def __init__(
        self, sending: Sequence[str], connection_string: str, entity: str, name: str, log: Path
    ) -> None:
        """`sending` is the command of the one that sends."""
        self.messages: list[Receive] = []
        self.errors: list[str] = []
        """Of receives that failed."""
        *interpreter, program = sending
        # Java names a class; the program in Go is one for both, by the number of its arguments.
        folder, found, rest = program.rpartition("outage")
        if found:
            program = f"{folder}receive{rest}"
        elif program == "Outage":
            program = "Receive"
        super().__init__([*interpreter, program, entity], connection_string, name, log)

    def take(self, line: dict[str, Any]) -> None:
        if "number" not in line:
            self.errors.append(line["error"])
            return
        number = int(line["number"])
        if line.get("settled"):
            latest = next(one for one in reversed(self.messages) if one.number == number)
            latest.is_completed = "error" not in line
        else:
            text = str(line["text"]).strip('"')
            self.messages.append(Receive(text, line["id"], number, line["at_ms"] / 1_000))
