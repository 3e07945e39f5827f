"""Standard output for bytes that come in blocks, while the rest of the program goes on.

A reader that is slow holds up only whoever writes; one that is gone is noticed at once, also when
there is nothing to write, as behind `| head`. A write into a pipe or a terminal can be cancelled,
and then it is known to the byte what was taken.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync

from raftmq.cli.data.streams import file_of, is_terminal
from raftmq.cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sink:
    """Attributes:
    is_terminal: a person reads it.
    blocks: so many have been written.
    byte_count: so many were taken, also of a block that was not written to its end.
    """

    def __init__(self) -> None:
        self._file = file_of("stdout")
        self.is_terminal = is_terminal("stdout")
        self.blocks = self.byte_count = 0
        self._mode = os.fstat(self._file).st_mode
        self._own = _open_again(self._file, self._mode)

    async def write(self, data: bytes) -> None:
        """All of it.

        Raises:
            BrokenPipeError: nobody reads any more.
            CommandError: it cannot be written, as where a disk is full.
        """
        try:
            await (self._write_whole(data) if self._own is None else self._hand(self._own, data))
        except BrokenPipeError:
            raise
        except OSError as error:
            line = f"cannot write to stdout: {error.strerror}"
            raise CommandError(line, ExitCode.FAILED) from error
        self.blocks += 1

    async def watch(self) -> None:
        """Raises BrokenPipeError once nobody reads any more; returns where nobody can tell."""
        if not stat.S_ISFIFO(self._mode):
            return
        await anyio.wait_readable(
            self._file
        )  # of the end that is written to: an error, and no data
        raise BrokenPipeError

    async def _write_whole(self, data: bytes) -> None:
        """In a worker thread; into a file to its end, as that takes what it is given."""
        is_file = stat.S_ISREG(self._mode)
        await run_sync(_write_all, self._file, data, abandon_on_cancel=not is_file)
        self.byte_count += len(data)

    async def _hand(self, own: int, data: bytes) -> None:
        """As much as is taken at a time."""
        rest = memoryview(data)
        while rest:
            await anyio.wait_writable(own)
            with suppress(BlockingIOError):
                count = os.write(own, rest)
                self.byte_count += count
                rest = rest[count:]


def _open_again(file: int, mode: int) -> int | None:
    """A way of our own to the same pipe or terminal, as long as this process lives: on it nobody
    has to wait. To switch that on for the one that was given would do so for all who share it.
    None: there is none, or it is something else.
    """
    if not (stat.S_ISFIFO(mode) or os.isatty(file)):
        return None
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        return os.open(f"/proc/self/fd/{file}", flags)
    return None


def _write_all(file: int, data: bytes) -> None:
    for piece in _pieces(data):
        rest = piece
        while rest:
            rest = rest[os.write(file, rest) :]


def _pieces(data: bytes, size: int = 1 << 20) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + size] for start in range(0, len(view), size))
