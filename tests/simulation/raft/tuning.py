"""Size limits of the real code, made small for one world, so that their edges are reached often.

Owns the list of them. Each is a number that is no promise: bytes in one AppendEntries, in one
chunk of a snapshot, in one segment of the journal. What happens at their edges then happens often.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest

from raftmq.metadata.raft import opening
from raftmq.metadata.raft.engine import replication
from raftmq.metadata.raft.journal.journal import start_journal
from raftmq.metadata.raft.net import observer_service
from raftmq.metadata.raft.snapshot import snapshotter
from raftmq.metadata.raft.snapshot.transfer import SnapshotReceiver, SnapshotSender

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


class Sizes(NamedTuple):
    append_bytes: int
    chunk_bytes: int
    segment_bytes: int


def draw_sizes(random: Random, command_bytes: int) -> Sizes:
    """Large commands want larger sizes, or the world does nothing but send one at a time."""
    return Sizes(
        append_bytes=random.choice((1 << 20, 400, 100)) + 5 * command_bytes,
        chunk_bytes=random.choice((1 << 20, 1 << 20, 2000)) + 20 * command_bytes,
        segment_bytes=random.choice((32 << 20, 20_000, 3000)),
    )


@contextmanager
def tuned(sizes: Sizes) -> Iterator[None]:
    sender = partial(SnapshotSender, chunk_bytes=sizes.chunk_bytes)
    receiver = partial(SnapshotReceiver, chunk_bytes=sizes.chunk_bytes)
    start = partial(start_journal, segment_bytes=sizes.segment_bytes)
    with pytest.MonkeyPatch.context() as patch:
        for module in (replication, observer_service):
            patch.setattr(module, "APPEND_BYTES_MAX", sizes.append_bytes)
        patch.setattr(snapshotter, "SnapshotSender", sender)
        patch.setattr(snapshotter, "SnapshotReceiver", receiver)
        patch.setattr(opening, "start_journal", start)
        yield
