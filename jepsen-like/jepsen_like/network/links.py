"""`Links`: cut, shape, reset and heal the network; each call is a command to the switch.

A call returns when it holds: no frame that the switch has not yet forwarded escapes a cut. Calls
may come from any thread, one at a time. Owns no process.
"""

from __future__ import annotations

import os
import select
from threading import Lock
from typing import IO, TYPE_CHECKING, Protocol

from jepsen_like.network.commands import (
    Ask,
    Cut,
    Heal,
    Reset,
    ShapeLink,
    decode_counts,
    encode_line,
)
from jepsen_like.network.rules import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jepsen_like.network.commands import Command, Counts

ANSWER_SECONDS = 10.0  # for the switch to answer; it needs milliseconds, so it has ended or hangs
RESET_SECONDS = 0.3  # for which new connections are refused: both ends try again at least once


class NetworkError(Exception):
    """The network of the run cannot be made, or has ended: what was tried, and what was said."""


class Links(Protocol):
    """Links are one-way, from `source` to `target`, by the names in `hosts`."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes, "n1" and so on, and last "clients", where the harness is."""

    def cut(self, source: str, target: str) -> None:
        """Drop all frames that are sent there, and those in flight."""

    def shape(
        self,
        source: str,
        target: str,
        *,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        duplicate: float = 0.0,
    ) -> None:
        """Instead of the link's last shape. `loss`, `duplicate`: how likely, 0 to 1."""

    def reset(self, one: str, other: str) -> None:
        """Break every TCP connection between the two at once, and refuse new ones for a moment."""

    def heal(self) -> None:
        """Nothing is broken any more; what is delayed still comes when it is due."""


class SwitchLinks:
    """The links of a lab."""

    def __init__(
        self,
        hosts: Iterable[str],
        *,
        commands: IO[bytes],
        answers: IO[bytes],
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`commands`, `answers`: the pipes to and from the switch."""
        self.hosts = tuple(hosts)
        self._commands, self._answers = commands, answers
        self._answer_seconds = answer_seconds
        self._told = 0  # commands
        self._unread = b""
        self._lock = Lock()

    def cut(self, source: str, target: str) -> None:
        self._check_link(source, target)
        self._tell(Cut(source, target))

    def shape(
        self,
        source: str,
        target: str,
        *,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        duplicate: float = 0.0,
    ) -> None:
        self._check_link(source, target)
        assert min(delay_ms, jitter_ms) >= 0, f"{delay_ms=} {jitter_ms=}"
        assert 0 <= min(loss, duplicate) <= max(loss, duplicate) <= 1, f"{loss=} {duplicate=}"
        shape = Shape(delay_ms / 1000, jitter_ms / 1000, loss, duplicate)
        self._tell(ShapeLink(source, target, shape))

    def reset(self, one: str, other: str, *, seconds: float = RESET_SECONDS) -> None:
        """`seconds`: how long connections are refused, in both directions."""
        self._check_link(one, other)
        self._tell(Reset(one, other, seconds))

    def heal(self) -> None:
        self._tell(Heal())

    def counts(self) -> Counts:
        """What became of the frames so far."""
        return self._tell(Ask())

    def _check_link(self, source: str, target: str) -> None:
        assert {source, target} <= set(self.hosts), f"{source} to {target}: of {self.hosts}"
        assert source != target, f"{source} has no link to itself"

    def _tell(self, command: Command) -> Counts:
        with self._lock:
            try:
                self._told += 1
                self._commands.write(encode_line(command))
                self._commands.flush()
                return self._read_answer()
            except (OSError, EOFError, ValueError) as error:  # ValueError: the pipe is closed
                raise NetworkError(f"the switch does not do {command}: {error}") from error

    def _read_answer(self) -> Counts:
        """To the last command: others may come first, if one was interrupted while it waited."""
        while True:
            counts = decode_counts(self._read_line())
            if counts.commands == self._told:
                return counts

    def _read_line(self) -> bytes:
        while b"\n" not in self._unread:
            self._unread += self._read()
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _read(self) -> bytes:
        waiting = select.poll()
        waiting.register(self._answers, select.POLLIN)
        if not waiting.poll(self._answer_seconds * 1000):
            raise TimeoutError(f"no answer within {self._answer_seconds} s")
        read = os.read(self._answers.fileno(), 1 << 16)
        if not read:
            raise EOFError("it has ended; its last words are on stderr")
        return read
