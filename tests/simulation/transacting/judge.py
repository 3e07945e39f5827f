"""The judge of transactions in logs: markers, last stable offsets, indexes, readers' views.

Owns the invariants X1 to X3 and X8 over the logs of a world at rest:

* X1: a producer id in one epoch has one outcome, in all logs, and in the metadata.
* X2: the last stable offset is what the log says, and so are the transactions that were aborted.
* X3: between the begin and the marker of a transaction its producer id has no other epoch.
* X8: what a reader of committed records got of a partition is a beginning of what is committed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.history.event import Type
from jepsen_like.workloads.keys import decode_value
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import RecordBatch
from tests.simulation.brokers.examination import _judge_equal, content_of, replicas_of
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from raftmq.partition.replica import Replica
    from tests.simulation.transacting.world import TransactionWorld

ABORTED_MAX = 100_000  # of one log of a world
_OUTCOMES = {ControlType.COMMIT: True, ControlType.ABORT: False}


class Ended(NamedTuple):
    """A transaction as one log has it."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    marker_offset: int
    is_committed: bool


class View(NamedTuple):
    """Of one log.

    Attributes:
        all_records, committed: offsets and values, in order.
    """

    ended: list[Ended]
    all_records: list[tuple[int, int]]
    committed: list[tuple[int, int]]


def view_of(what: str, data: bytes) -> View:
    """Of a whole log. Raises Violation: X3 is broken."""
    opened: dict[int, tuple[int, int]] = {}  # epoch and first offset, by producer id
    pending: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    ended: list[Ended] = []
    everything: list[tuple[int, int]] = []
    committed: list[tuple[int, int]] = []
    last: dict[int, int] = {}  # epoch that ended, by producer id
    for position, header in iter_batches(data):
        where = f"{what} {header.base_offset}"
        batch = RecordBatch.decode(data, position)
        pid, epoch = header.producer_id, header.producer_epoch
        if header.is_control:
            outcome = _OUTCOMES[ControlType(batch.control.type)]
            demand(pid in opened, f"{where}: a marker of {pid} {epoch}, of which nothing is open")
            began, first = opened.pop(pid)
            demand(epoch == began + 1, f"{where}: X3: the marker of {pid} {began} has {epoch}")
            ended.append(Ended(pid, began, first, header.base_offset, outcome))
            last[pid] = began
            records = pending.pop(pid)
            committed += records if outcome else []
            continue
        records = [(record.offset, decode_value(record.value)) for record in batch.records()]
        everything += records
        if not header.is_transactional:
            committed += records
            continue
        demand(last.get(pid, -1) < epoch, f"{where}: {pid} {epoch} goes on after its marker")
        began, _ = opened.setdefault(pid, (epoch, header.base_offset))
        demand(began == epoch, f"{where}: X3: {pid} has epoch {epoch}, and {began} is open")
        pending[pid] += records
    return View(ended, everything, sorted(committed))


def views(world: TransactionWorld) -> dict[str, View]:
    """By key. Raises Violation."""
    found = {}
    for spot in world.spots():
        replica = next(iter(replicas_of(world, spot).values()))
        found[str(spot)] = view_of(str(spot), content_of(replica, 0))
    return found


def judge_logs(world: TransactionWorld, known: dict[str, View]) -> None:
    outcomes: dict[tuple[int, int], tuple[bool, str]] = {}
    for spot in world.spots():
        replicas = replicas_of(world, spot)
        _judge_equal(spot, replicas)
        view = known[str(spot)]
        for one in view.ended:
            key = one.producer_id, one.producer_epoch
            told = world.decisions.is_committed(*key)
            first = (one.is_committed, str(spot)) if told is None else (told, "the metadata")
            is_committed, where = outcomes.setdefault(key, first)
            demand(
                is_committed == one.is_committed,
                f"X1: {key} is committed={is_committed} in {where}, and not in {spot}",
            )
        for name, replica in replicas.items():
            _judge_index(f"{spot} on {name}", replica, view)


def _judge_index(what: str, replica: Replica, view: View) -> None:
    """All of it, and what a reader asks for that begins somewhere."""
    end = replica.last_stable_offset
    demand(end == replica.high_watermark, f"X2: {what}: stable {end}, {replica.high_watermark}")
    aborted = [one for one in view.ended if not one.is_committed]
    starts = {0, end // 2, *(one.marker_offset for one in aborted[-3:])}
    for start in sorted(starts):
        told = replica.log.aborted_in(start, end, ABORTED_MAX)
        found = [(one.producer_id, one.first_offset, one.marker_offset) for one in told]
        wanted = sorted(
            (
                (one.producer_id, one.first_offset, one.marker_offset)
                for one in aborted
                if one.marker_offset > start and one.first_offset < end
            ),
            key=lambda each: each[1],
        )
        demand(
            found == wanted,
            f"X2: {what}: aborted from {start}: the index says {found}, the log {wanted}",
        )


def judge_views(world: TransactionWorld, known: dict[str, View]) -> None:
    """X8, of each reader that read from the beginning, outside of transactions."""
    levels: dict[object, bool] = {}
    reads: defaultdict[tuple[object, str], list[tuple[int, int]]] = defaultdict(list)
    for event in world.history.recorder.events:
        if event.f == "assign" and event.type is Type.OK and event.value["from"] == "beginning":
            levels[event.process] = event.value.get("level") != "uncommitted"
        elif event.f == "poll" and event.type is Type.OK and event.process in levels:
            for key, records in event.value["records"]:
                reads[event.process, key] += [(offset, value) for offset, value in records]
    for (process, key), found in reads.items():
        view = known[key]
        wanted = view.committed if levels[process] else view.all_records
        number = next(
            (at for at, pair in enumerate(found) if at >= len(wanted) or pair != wanted[at]), None
        )
        if number is not None:
            there = wanted[number] if number < len(wanted) else None
            demand(
                False,
                f"X8: process {process} got {found[number]} of {key} as number {number},"
                f" where {there} is committed={levels[process]}",
            )
