"""The newest appends in memory: whole, in order, and never more than the memory allows."""

from __future__ import annotations

from random import Random

from raftmq.partition.tail import (
    APPEND_COST_BYTES,
    JOINED_BYTES_MAX,
    LogTail,
    TailMemory,
)

MUCH = 1 << 20


def fill(tail: LogTail, *lengths: int, offset: int = 0) -> list[bytes]:
    """One append of two offsets for each length."""
    appends = []
    for number, length in enumerate(lengths):
        data = bytes([number]) * length
        base_offset = offset + 2 * number
        tail.append(base_offset, base_offset + 2, [data[:16], data[16:]], length)
        appends.append(data)
    return appends


def read(tail: LogTail, offset: int, bytes_max: int = MUCH) -> tuple[int, bytes] | None:
    found = tail.read(offset, bytes_max)
    if found is None:
        return None
    data = b"".join(found.pieces)
    assert len(data) == found.length
    return found.end_offset, data


def test_appends_are_read_together() -> None:
    """A follower that is a few appends behind gets all of them."""
    tail = TailMemory().begin_tail()
    appends = fill(tail, 100, 200, 300)
    assert read(tail, 0) == (6, b"".join(appends))
    assert read(tail, 4) == (6, appends[2])
    assert read(tail, 0, 300) == (4, b"".join(appends[:2]))


def test_what_it_does_not_have_is_read_from_the_file() -> None:
    """Older records, an offset within an append, and an append over the reader's limit, which
    may end between two of its batches."""
    tail = TailMemory().begin_tail()
    fill(tail, 100, 200, offset=10)
    assert read(tail, 8) is None
    assert read(tail, 11) is None
    assert read(tail, 14) is None
    assert read(tail, 10, 99) is None


def test_the_oldest_append_of_all_logs_leaves_first() -> None:
    """One memory for all: a busy log has most of it, and none keeps what it wrote long ago."""
    memory = TailMemory(4 * (1000 + APPEND_COST_BYTES))
    quiet, busy = memory.begin_tail(), memory.begin_tail()
    fill(quiet, 1000)
    fill(busy, 1000, 1000, 1000)
    assert read(quiet, 0) is not None
    fill(busy, 1000, offset=6)
    assert read(quiet, 0) is None
    assert read(busy, 0) is not None
    fill(busy, 1000, offset=8)
    assert read(busy, 0) is None
    assert memory.held_bytes == 4 * (1000 + APPEND_COST_BYTES)


def test_a_part_of_a_request_does_not_keep_all_of_it() -> None:
    """A view of a small part is copied, one of most of it is not."""
    tail = TailMemory().begin_tail()
    request = bytes(JOINED_BYTES_MAX * 4)
    tail.append(0, 1, [memoryview(request)[: JOINED_BYTES_MAX + 1]], JOINED_BYTES_MAX + 1)
    tail.append(1, 2, [memoryview(request)[16:]], len(request) - 16)
    small, large = tail.read(0, JOINED_BYTES_MAX + 1), tail.read(1, MUCH)
    assert small is not None
    assert large is not None
    assert isinstance(small.pieces[0], bytes)
    assert isinstance(large.pieces[0], memoryview)


def test_a_request_that_is_kept_counts_as_a_whole() -> None:
    """The other half of its bytes stays in memory, too."""
    memory = TailMemory()
    tail, request = memory.begin_tail(), bytes(JOINED_BYTES_MAX * 4)
    part = memoryview(request)[: JOINED_BYTES_MAX * 3]
    tail.append(0, 1, [bytes(16), part[16:]], len(part))
    assert memory.held_bytes == 16 + len(request) + APPEND_COST_BYTES


def test_many_small_appends_are_one_piece() -> None:
    """For a follower that comes back after a pause: each by itself would cost the leader more."""
    tail = TailMemory().begin_tail()
    appends = fill(tail, *[20] * 200)
    found = tail.read(0, MUCH)
    assert found is not None
    assert [bytes(piece) for piece in found.pieces] == [b"".join(appends)]


def test_any_reading_equals_the_log() -> None:
    """Appends of several logs in any order: what a tail has is what the log has there."""
    random = Random(22)
    memory = TailMemory(20_000)
    tails = [memory.begin_tail() for _ in range(3)]
    logs: list[list[tuple[int, int, bytes]]] = [[] for _ in tails]
    for _ in range(2000):
        number = random.randrange(3)
        log, tail = logs[number], tails[number]
        end = log[-1][1] if log else 0
        data, following = random.randbytes(random.randint(17, 900)), end + random.randint(1, 9)
        log.append((end, following, data))
        tail.append(end, following, [data[:16], data[16:]], len(data))
        assert memory.held_bytes <= 20_000
        base, _, _ = random.choice(log[-12:])
        found = read(tail, base, bytes_max := random.randint(1, 4000))
        if found is not None:
            taken = [entry for entry in log if base <= entry[0] < found[0]]
            assert found == (taken[-1][1], b"".join(data for _, _, data in taken))
            assert len(found[1]) <= bytes_max
