"""Bursts of records out of pipes and files."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.cli.data import produce_run as feeds
from raftmq.cli.data.produce_run import Feed, total_bytes
from raftmq.cli.data.record_lines import LineShape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def fed(*paths: Path, shape: LineShape | None = None) -> AsyncIterator[Feed]:
    feed = Feed(list(map(str, paths)), b"\n", shape or LineShape())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        yield feed
        nursery.cancel_scope.cancel()


async def values(feed: Feed) -> list[bytes | None]:
    """Of one burst."""
    return [value async for _, value in feed.burst()]


async def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One burst goes on from file to file; the end of a file ends a record."""
    monkeypatch.setattr(feeds, "LINGER_SECONDS", 10.0)  # however long opening a file takes
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb")
    two.write_bytes(b"c\n\n")
    async with fed(one, two) as feed:
        assert await feed.wait()
        assert await values(feed) == [b"a", b"b", b"c", b""]
        assert not await feed.wait()
        assert (feed.read_bytes, feed.read_records) == (6, 4)
    assert total_bytes((str(one), str(two))) == 6


async def test_an_empty_file(tmp_path: Path) -> None:
    """There is no burst."""
    (tmp_path / "empty").touch()
    async with fed(tmp_path / "empty") as feed:
        assert not await feed.wait()


async def test_a_device_that_is_always_ready(tmp_path: Path) -> None:
    """It cannot be waited for, and is read nevertheless."""
    (tmp_path / "null").symlink_to("/dev/null")
    async with fed(tmp_path / "null") as feed:
        assert not await feed.wait()


async def test_a_pipe_that_is_written_to_now_and_then(tmp_path: Path) -> None:
    """A burst ends where the input pauses; nobody waits for the next line."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with fed(pipe) as feed:
        file = await trio.to_thread.run_sync(os.open, pipe, os.O_WRONLY)
        for text in (b"one\ntwo\nthr", b"ee\n"):
            os.write(file, text)
            assert await feed.wait()
            assert await values(feed) == text.replace(b"thr", b"").replace(b"ee", b"three").split()
        assert total_bytes((str(pipe),)) is None
        os.close(file)
        assert not await feed.wait()


async def test_a_wait_is_cancelled_at_once(tmp_path: Path) -> None:
    """Nobody ever opens the other end, or writes to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with fed(pipe) as feed:
        with trio.move_on_after(0.01) as scope:
            await feed.wait()
        assert scope.cancelled_caught
        os.close(await trio.to_thread.run_sync(os.open, pipe, os.O_WRONLY))


async def test_a_queue_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading waits until something is taken; long bursts are ended."""
    monkeypatch.setattr(feeds, "QUEUE_BYTES_MAX", 1)
    monkeypatch.setattr(feeds, "BURST_ROWS_MAX", 1)
    path = tmp_path / "long"
    path.write_bytes(b"x" * 999_999 + b"\n" + b"y" * 1_500_000 + b"\n")
    async with fed(path) as feed:
        sizes = []
        while await feed.wait():
            assert feed.read_bytes <= 2 << 20 or sizes
            sizes.append([len(value or b"") for value in await values(feed)])
        assert sizes == [[999_999], [1_500_000]]


async def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The records of the one before it come first."""
    (tmp_path / "good").write_bytes(b"a\n")
    async with fed(tmp_path / "good", tmp_path) as feed:
        assert await feed.wait()
        assert await values(feed) == [b"a"]
        with pytest.raises(IsADirectoryError):
            await feed.wait()


async def test_keys(tmp_path: Path) -> None:
    """Rows are what the shape makes of lines."""
    (tmp_path / "keys").write_bytes(b"k=v\n")
    async with fed(tmp_path / "keys", shape=LineShape(None, b"=")) as feed:
        assert await feed.wait()
        assert [row async for row in feed.burst()] == [("k", b"v")]
