"""Files and standard input, a block at a time, while the rest of the program goes on.

Pipes and terminals are read when there is something to read, so that a wait can be cancelled at
once; files, which are always ready and may be slow, in a worker thread.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Self

import anyio
from anyio.to_thread import run_sync

from raftmq.cli.data.streams import file_of

STANDARD_INPUT = "-"
PIPE_BLOCK_BYTES = 64 << 10
FILE_BLOCK_BYTES = 1 << 20


class Source:
    """`async with Source(path):`

    Attributes:
        is_prompt: the next block comes as soon as it is asked for; nobody has to write it first.
    """

    def __init__(self, path: str) -> None:
        self._path, self._file = path, -1
        self.is_prompt = False

    async def __aenter__(self) -> Self:
        if self._path == STANDARD_INPUT:
            self._file = file_of("stdin")
        else:  # opening a named pipe waits for somebody to write to it
            self._file = await run_sync(_open, self._path, abandon_on_cancel=True)
        self.is_prompt = stat.S_ISREG(os.fstat(self._file).st_mode)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._path != STANDARD_INPUT:
            os.close(self._file)

    async def read(self) -> bytes:
        """Nothing at the end. Raises OSError."""
        if not self.is_prompt:
            try:
                await anyio.wait_readable(self._file)
            except OSError as error:
                if error.errno != errno.EPERM:
                    raise
                self.is_prompt = True  # a device that is always ready, as /dev/null
        if self.is_prompt:
            return await run_sync(os.read, self._file, FILE_BLOCK_BYTES, abandon_on_cancel=True)
        return os.read(self._file, PIPE_BLOCK_BYTES)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def total_bytes(paths: tuple[str, ...]) -> int | None:
    """Of all files; None where one is no file, so that nobody knows."""
    found = [
        os.fstat(file_of("stdin")) if path == STANDARD_INPUT else os.stat(path)  # noqa: PTH116
        for path in paths
    ]
    if not all(stat.S_ISREG(one.st_mode) for one in found):
        return None
    return sum(one.st_size for one in found)
