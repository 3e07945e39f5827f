"""What brokers promised to clients, what clients read, and the verdict on the logs. Pure."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.wire.batch.records import RecordBatch, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from raftmq.errors import RaftmqError

RECORDS_PER_BATCH = 2
_PADDING = b"." * 100
_SHOWN = 5


class StoredBatch(NamedTuple):
    base_offset: int
    end_offset: int
    data: bytes


Logs: TypeAlias = "Mapping[int, Sequence[StoredBatch]]"  # of one node, by partition


def batch_of(key: int) -> bytearray:
    """A key stands for one batch and is used once."""
    values = [b"%d %d %s" % (key, number, _PADDING) for number in range(RECORDS_PER_BATCH)]
    now_ms = int(time.time() * 1000)  # or retention would take it for old
    return encode_batch(values=values, timestamp=now_ms)


def values_in(batch: StoredBatch) -> Iterator[tuple[int, tuple[int, int]]]:
    """Of each record: its offset, its key and its number in the batch."""
    for record in RecordBatch.decode(batch.data).records():
        assert record.value is not None
        key, number, _ = bytes(record.value).split(b" ")
        yield record.offset, (int(key), int(number))


class BrokerLedger:
    """Attributes:
    acknowledged: by all in sync: key by partition and offset.
    taken: by the leader alone, who may lose it; `taken_lost` counts what was lost.
    errors: that clients were told, by name.
    findings: what is wrong, a line each; empty if all is well. May be shared.
    """

    def __init__(self, findings: list[str] | None = None) -> None:
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.taken: dict[tuple[int, int], int] = {}
        self.denied: set[int] = set()
        self.uncertain: set[int] = set()
        self.errors: Counter[str] = Counter()
        self.lost = self.taken_lost = 0
        self.comparisons = 0
        self.findings = [] if findings is None else findings
        self._read: dict[tuple[int, int], tuple[int, int]] = {}

    def on_acknowledged(self, key: int, *, partition: int, offset: int) -> None:
        self.acknowledged[partition, offset] = key

    def on_taken(self, key: int, *, partition: int, offset: int) -> None:
        self.taken[partition, offset] = key

    def on_failed(self, key: int, error: RaftmqError) -> None:
        (self.denied if error.definite else self.uncertain).add(key)
        self.on_error(f"produce of key {key}", error)

    def on_error(self, what: str, error: RaftmqError) -> None:
        """Clients may meet errors, but only of the kind that passes."""
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        self.errors[type(error).__name__ + cause] += 1
        if not error.retriable:
            self.findings.append(f"{what}: {error!r}")

    def on_read(self, partition: int, batch: StoredBatch) -> None:
        for offset, value in values_in(batch):
            before = self._read.setdefault((partition, offset), value)
            if before != value:
                self.findings.append(f"{partition}@{offset} was {before}, now reads {value}")

    def release(self) -> None:
        """From all promises so far: nobody is left who could keep them."""
        self.acknowledged.clear()
        self.taken.clear()
        self._read.clear()

    def compare_disks(self, logs_of: Mapping[int, Logs], *, copies: int) -> None:
        """Of nodes that are all dead: so many of them must hold each promise."""
        promised = self._promised(self.acknowledged) | self._read
        missing = Counter[tuple[int, int]]()
        for logs in logs_of.values():
            missing.update(place for place, _ in _not_held(promised, _values(logs)))
        few = [place for place, count in missing.items() if len(logs_of) - count < copies]
        self.lost = max(self.lost, sum(count == len(logs_of) for count in missing.values()))
        self._find(f"on fewer than {copies} disks", sorted(few))

    def compare(self, logs_of: Mapping[int, Logs]) -> None:
        """The whole logs of all nodes, at rest."""
        self.comparisons += 1
        first, *others = sorted(logs_of)
        for other in others:
            for partition, log in logs_of[first].items():
                self._compare_logs(f"{first} and {other}", partition, log, logs_of[other])
        self._compare_values(logs_of[first])

    def _compare_logs(
        self, who: str, partition: int, log: Sequence[StoredBatch], other: Logs
    ) -> None:
        for mine, theirs in zip(log, other[partition], strict=False):
            if mine != theirs:
                where = f"partition {partition} at {mine.base_offset}, {theirs.base_offset}"
                self.findings.append(f"the logs of {who} differ: {where}")
                return
        if len(log) != len(other[partition]):
            self.findings.append(f"the logs of {who} differ in length: partition {partition}")

    def _compare_values(self, logs: Logs) -> None:
        held = _values(logs)
        lost = _not_held(self._promised(self.acknowledged), held)
        self.lost = max(self.lost, len(lost))
        self.taken_lost = len(_not_held(self._promised(self.taken), held))
        self._find("acknowledged and lost", lost)
        self._find("read, and not there any more", _not_held(self._read, held))
        counts = Counter(held.values())
        self._find("more than once", [value for value, count in counts.items() if count > 1])
        self._find("there, though denied", [value for value in counts if value[0] in self.denied])

    @staticmethod
    def _promised(keys: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], tuple[int, int]]:
        """The first record of each batch stands for all of it."""
        return {place: (key, 0) for place, key in keys.items()}

    def _find(self, what: str, found: Sequence[object]) -> None:
        if found:
            self.findings.append(f"{what}: {len(found)}, {found[:_SHOWN]}")


def _values(logs: Logs) -> dict[tuple[int, int], tuple[int, int]]:
    """By partition and offset."""
    return {
        (partition, offset): value
        for partition, log in logs.items()
        for batch in log
        for offset, value in values_in(batch)
    }


def _not_held(
    wanted: Mapping[tuple[int, int], tuple[int, int]],
    held: Mapping[tuple[int, int], tuple[int, int]],
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return sorted(item for item in wanted.items() if held.get(item[0]) != item[1])
