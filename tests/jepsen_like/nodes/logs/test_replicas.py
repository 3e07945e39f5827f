"""Logs as they lie on a disk become events, with what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c

from jepsen_like.nodes.logs.replicas import (
    HIGH_WATERMARKS,
    add_batch,
    batch_of,
    read_replicas,
)
from jepsen_like.workloads.keys import UNREADABLE, encode_value, key_of
from raftmq.disk.checkpoint import write_checkpoint
from raftmq.disk.files import OsFiles
from raftmq.partition.storage.inspect import CHECKPOINTS_FOLDER
from raftmq.partition.storage.work import write_log_start
from raftmq.wire.batch.header import NAMED_FIRST, Account
from raftmq.wire.batch.records import encode_batch, encode_fence
from raftmq.wire.batch.scheduling import delivery_of

if TYPE_CHECKING:
    from pathlib import Path

    from jepsen_like.nodes.logs.node_event import NodeEvent

TOPIC_ID = "0f" * 16
KEY = key_of("all-1", 0)


def batch(base_offset: int, *values: int, epoch: int = 1) -> bytes:
    encoded = [encode_value(value, padding_bytes=value % 5) for value in values]
    return bytes(
        encode_batch(values=encoded, timestamp=1, base_offset=base_offset, leader_epoch=epoch)
    )


def folder_of(directory: Path, partition: int = 0, topic_id: str = TOPIC_ID) -> Path:
    folder = directory / "topics" / f"all-1-{topic_id}" / f"Partition-{partition}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(directory: Path, *batches: bytes, base_offset: int = 0, partition: int = 0) -> Path:
    path = folder_of(directory, partition) / f"{base_offset:020}.log"
    path.write_bytes(b"".join(batches))
    return path


def read(directory: Path) -> dict[str, Any]:
    (event,) = read_replicas(directory, 3, [KEY])
    assert (event.node_id, event.f) == (3, "replica")
    return event.value


def fence(base_offset: int) -> bytes:
    given = {"producer_id": NAMED_FIRST, "producer_epoch": 0, "next_sequence": 0, "timestamp": 1}
    account = Account(generation=1, digest=0)
    return bytes(encode_fence(account, **given, base_offset=base_offset, leader_epoch=1))


def test_a_fence_has_a_place_and_is_nobodys_record(tmp_path: Path) -> None:
    """The log ends behind it, and what it says is no value."""
    write(tmp_path, batch(0, 1), fence(1))
    assert [values for *_, values in read(tmp_path)["batches"]] == [[1], [None]]


def test_what_is_scheduled_is_hidden_and_told(tmp_path: Path) -> None:
    """No reader gets it where it stands; its values are told apart (A12.2)."""
    encoded = [encode_value(value) for value in (1, 2, 3)]
    scheduled = bytes(encode_batch(values=encoded, timestamp=1, due_ms=500, leader_epoch=1))
    write(tmp_path, scheduled)
    found = read(tmp_path)
    assert [values for *_, values in found["batches"]] == [[None, None, None]]
    assert found["scheduled"] == [[0, [1, 2, 3]]]


def test_a_delivery_without_what_was_cancelled() -> None:
    """The other values stand at their offsets, and nothing is scheduled (A12.2)."""
    encoded = [encode_value(value) for value in (1, 2, 3)]
    scheduled = encode_batch(values=encoded, timestamp=1, due_ms=500, leader_epoch=1)
    found: dict[str, list[Any]] = {"batches": []}
    delivery = delivery_of(scheduled, original_offset=0, now_ms=500, left_out=[1])
    add_batch(found, bytes(delivery))
    ((_, _, _, values),) = found["batches"]
    assert values == [1, None, 3]
    assert "scheduled" not in found


def test_batches_of_all_segments(tmp_path: Path) -> None:
    """Two segments, two epochs, and what the node has noted of the log."""
    data = [batch(0, 1, 2), batch(2, 3), batch(3, 4, 5, 6, epoch=2)]
    write(tmp_path, *data[:2])
    write(tmp_path, data[2], base_offset=3)
    (tmp_path / CHECKPOINTS_FOLDER).mkdir()
    known = {f"all-1-{TOPIC_ID}/Partition-0": 5}
    write_checkpoint(OsFiles(), tmp_path / CHECKPOINTS_FOLDER / HIGH_WATERMARKS, known)
    write_log_start(OsFiles(), folder_of(tmp_path), 2)
    assert read(tmp_path) == {
        "key": KEY,
        "log_start": 2,
        "high_watermark": 5,
        "batches": [
            [0, 1, crc32c(data[0]), [1, 2]],
            [2, 1, crc32c(data[1]), [3]],
            [3, 2, crc32c(data[2]), [4, 5, 6]],
        ],
    }


def test_the_crc_covers_what_a_leader_writes(tmp_path: Path) -> None:
    """One batch under two epochs: the producer's CRC is the same, this one is not."""
    assert batch_of(batch(0, 1, epoch=1))[2] != batch_of(batch(0, 1, epoch=2))[2]


def test_other_logs_are_left_out(tmp_path: Path) -> None:
    """A partition that nobody asked for, and a folder that is being deleted."""
    write(tmp_path, batch(0, 1))
    write(tmp_path, batch(0, 2), partition=1)
    folder_of(tmp_path, 0, "ff" * 16).rename(folder_of(tmp_path).with_name("Partition-0.deleted"))
    assert len(read(tmp_path)["batches"]) == 1
    assert read_replicas(tmp_path / "nowhere", 3, [KEY]) == []


def test_an_append_under_way_is_no_damage(tmp_path: Path) -> None:
    """The end of the last batch is not there yet."""
    write(tmp_path, batch(0, 1), batch(1, 2)[:-1])
    value = read(tmp_path)
    assert [found[0] for found in value["batches"]] == [0]
    assert "damage" not in value


@pytest.mark.parametrize("is_last", [True, False])
def test_damage_is_told(tmp_path: Path, *, is_last: bool) -> None:
    """Bytes in the middle of a segment, or at the end of one that is not the last."""
    broken = bytearray(batch(1, 2))
    broken[-1] ^= 1
    if is_last:
        write(tmp_path, batch(0, 1), bytes(broken), batch(2, 3))
    else:
        write(tmp_path, batch(0, 1), bytes(broken))
        write(tmp_path, batch(2, 3), base_offset=2)
    value = read(tmp_path)
    assert [found[0] for found in value["batches"]] == [0, 2]
    (told,) = value["damage"]
    assert told.startswith(f"{0:020}.log, byte {len(batch(0, 1))}: ")


def test_values_that_nobody_sent() -> None:
    """They are there, and they are none of ours."""
    data = encode_batch(values=[b"", None, b"x1", b"7 "], timestamp=1)
    assert batch_of(bytes(data))[3] == [UNREADABLE, UNREADABLE, UNREADABLE, 7]


def test_two_topics_of_one_name(tmp_path: Path) -> None:
    """One was deleted on this node a little late: both are told."""
    write(tmp_path, batch(0, 1))
    (folder_of(tmp_path, topic_id="ff" * 16) / f"{0:020}.log").write_bytes(batch(0, 9))
    found: list[NodeEvent] = read_replicas(tmp_path, 1, [KEY])
    assert [event.value["batches"][0][3] for event in found] == [[1], [9]]
