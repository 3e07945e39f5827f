"""Standard output for bytes that come in blocks, while the rest of the program goes on.

A reader that is slow holds up only whoever writes; one that is gone is noticed at once, also when
there is nothing to write, as behind `| head`.
"""

from __future__ import annotations

import os
import stat
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
    """

    def __init__(self) -> None:
        self._file = file_of("stdout")
        self.is_terminal = is_terminal("stdout")
        self.blocks = 0

    async def write(self, data: bytes) -> None:
        """All of it.

        Raises:
            BrokenPipeError: nobody reads any more.
            CommandError: it cannot be written, as where a disk is full.
        """
        try:
            await run_sync(_write_all, self._file, data, abandon_on_cancel=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            line = f"cannot write to stdout: {error.strerror}"
            raise CommandError(line, ExitCode.FAILED) from error
        self.blocks += 1

    async def watch(self) -> None:
        """Raises BrokenPipeError once nobody reads any more; returns where nobody can tell."""
        if not stat.S_ISFIFO(os.fstat(self._file).st_mode):
            return
        await anyio.wait_readable(
            self._file
        )  # of the end that is written to: an error, and no data
        raise BrokenPipeError


def _write_all(file: int, data: bytes) -> None:
    for piece in _pieces(data):
        rest = piece
        while rest:
            rest = rest[os.write(file, rest) :]


def _pieces(data: bytes, size: int = 1 << 20) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + size] for start in range(0, len(view), size))
