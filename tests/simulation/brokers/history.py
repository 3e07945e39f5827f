"""A world's history in jepsen-like's format, so that the same checkers judge both.

Owns what is recorded, and under which key. It must not change the world: it draws no random
numbers, waits for nothing, traces nothing. Where the format has no event for what happens in
worlds:

* A topic is made again under its name: a key says which life of it is meant (`Spot`). A send that
  overlapped the change is a stray: it may stand in its own life, or in a later one. It is told as
  a send of unknown outcome to each of them.
* The SDK chooses the partition: the key is where the record turned out to be. Where it was never
  seen it is left out, for every key would be a guess.
* A call with many records is one operation, in which their order is judged by the first copies.
  Where those may have been deleted before anybody saw them, each record is one.
* A broker leads what no client knows of: left out.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import trio
from crc32c import crc32c
from msgspec.structs import replace

from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.verdict import judge
from jepsen_like.history.event import NODE, RUN, WATCH, Event, Type, encode_line
from jepsen_like.history.recorder import Recorder
from raftmq.broker.replication.replicas import key_of
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import RecordBatch
from tests.simulation.brokers.examination import content_of, replicas_of
from tests.simulation.brokers.history_runs import Run
from tests.simulation.brokers.ledger import ANYWHERE, Outcome, Spot
from tests.simulation.raft.checks import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.partition.replica import Replica
    from tests.simulation.brokers.history_runs import Label
    from tests.simulation.brokers.ledger import Sent
    from tests.simulation.brokers.world import World

NO_DEMANDS = Demands(ok_share_min=0.0)
APART_FROM = 1_000_000  # processes that do nothing else
_TYPES = {Outcome.OK: Type.OK, Outcome.FAILED: Type.FAIL, Outcome.UNKNOWN: Type.INFO}
_NODES = re.compile(r"\bn(\d+)\b")
_STRUCK: ContextVar[list[tuple[str, Any]]] = ContextVar("struck")  # by the fault of this task


@dataclass(eq=False)
class _Call:
    """Records of one partition that were handed in together, in order.

    Attributes:
        sents: of the ledger.
        untold: how many of them have no recorded outcome yet.
    """

    process: int
    sents: list[Sent]
    untold: int = 1

    @property
    def outcome(self) -> Type:
        """Unknown where records differ; their offsets say more."""
        outcomes = {sent.outcome for sent in self.sents}
        return _TYPES[outcomes.pop() if len(outcomes) == 1 else Outcome.UNKNOWN]

    @property
    def may_be_stray(self) -> bool:
        return any(sent.is_stray or sent.answered_at < 0 for sent in self.sents)


class History:
    """Of the world that `world` is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._processes = count()
        self._idle: list[int] = []  # of senders; who never hears of an outcome sends no more
        self._under_way: dict[int, _Call] = {}  # by the identity of what was sent
        self._calls: dict[int, _Call] = {}  # by the number of the event
        self._replicas_from = 0  # what was taken before was not the end

    @cached_property
    def recorder(self) -> Recorder:
        """Made within the world: there is no clock before."""
        return Recorder(trio.current_time)

    def new_process(self) -> int:
        return next(self._processes)

    # Producers

    def on_send(self, sent: Sent, *, after: Sent | None = None) -> None:
        """`after`: what the same call has handed in before it, into the same partition."""
        if after is not None:
            call = self._under_way[id(sent)] = self._under_way[id(after)]
            call.sents.append(sent)
            call.untold += 1
            return
        process = self._idle.pop() if self._idle else self.new_process()
        call = self._under_way[id(sent)] = _Call(process, [sent])
        self._calls[self.recorder.invoke(process, "send", {}).index] = call

    def on_told(self, sent: Sent, why: str = "") -> None:
        """Its outcome, as the ledger has it."""
        call = self._under_way.pop(id(sent))
        call.untold -= 1
        if call.untold:
            return
        if call.outcome is not Type.INFO:
            self._idle.append(call.process)
        event = self.recorder.record(call.process, call.outcome, "send", {}, error=why or None)
        self._calls[event.index] = call

    # Producers with names

    def on_run(self, label: Label, rows: Mapping[Spot, Sequence[bytes]]) -> Run:
        """It shall send these rows, which others may have sent before, or send beside it."""
        return Run(self, label, rows)

    # What else happens

    def on_phase(self, name: str) -> None:
        self.recorder.record(RUN, Type.INFO, "phase", name)

    def on_leads(self, host: str, log: str, epoch: int) -> None:
        """`log` is found later: the client that makes the topic may not have its answer yet."""
        value = {"key": log, "epoch": epoch}
        self.recorder.record(NODE, Type.INFO, "leads", value, node=_nodes_in(host)[0])

    def on_struck(self, kind: str, what: object = "") -> None:
        value = {"nodes": _nodes_in(f"{what}"), "what": f"{what}"}
        self.recorder.fault(Type.INVOKE, kind, value)
        _STRUCK.get([]).append((kind, value))

    @contextmanager
    def fault_span(self) -> Iterator[None]:
        """Faults that begin within are over at its end."""
        token = _STRUCK.set([])
        try:
            yield
        finally:
            for kind, value in _STRUCK.get():
                self.recorder.fault(Type.INFO, kind, value)
            _STRUCK.reset(token)

    def take_replicas(self) -> None:
        """The logs of all brokers, which are whole and at rest; what is taken last counts."""
        self._replicas_from = len(self.recorder.events)
        texts, spots = _Texts(), self._world.spots()
        are_whole = dict.fromkeys(("partitions", "led", "whole"), len(spots))
        self.recorder.record(WATCH, Type.OK, "isr", are_whole)
        for spot in spots:
            for host, replica in replicas_of(self._world, spot).items():
                value = {"key": str(spot), **_content(replica, texts)}
                self.recorder.record(NODE, Type.OK, "replica", value, node=_nodes_in(host)[0])

    # The whole

    def events(self) -> list[Event]:
        """So far, each with the key that is known by now."""
        found: list[Event] = []
        processes: dict[tuple[int, Spot], int] = {}
        for event in self.recorder.events:
            call = self._calls.get(event.index)
            if call is None:
                found += self._settled(event)
                continue
            parts = [(part, spot) for part in self._parts_of(call) for spot in self._spots_of(call)]
            for part, spot in parts:
                number, process = APART_FROM + len(processes), event.process
                if len(parts) > 1:
                    process = processes.setdefault((id(part[0]), spot), number)
                value = _value_of(part, spot, is_told=event.type is not Type.INVOKE)
                found.append(replace(event, process=process, value=value))
        return [replace(event, index=index) for index, event in enumerate(found)]

    def _settled(self, event: Event) -> list[Event]:
        if event.f == "leads":
            spot = self._spot_of_log(event.value["key"])
            return [replace(event, value=event.value | {"key": str(spot)})] if spot else []
        is_early = event.f == "replica" and event.index < self._replicas_from
        return [] if is_early else [event]

    def _parts_of(self, call: _Call) -> list[list[Sent]]:
        """One by one where the order cannot be known: the first of two copies may be deleted."""
        if len(call.sents) == 1:
            return [call.sents]
        spot = call.sents[0].spot
        ledger = self._world.ledger.of(spot)
        is_complete = spot in self._world.spots() and not ledger.may_have_deleted(0)
        is_in_order = is_complete or not any(sent.may_stand_twice for sent in call.sents)
        return [call.sents] if is_in_order else [[sent] for sent in call.sents]

    def _spots_of(self, call: _Call) -> list[Spot]:
        """Where it may stand, or does."""
        spot, topic_ids = call.sents[0].spot, self._world.topic_ids
        if not call.may_be_stray:
            return [] if spot.partition == ANYWHERE else [spot]
        lives = [life for topic, life in topic_ids if topic == spot.topic and life >= spot.life]
        count_of_all = self._world.topics[spot.topic]
        is_known = spot.partition != ANYWHERE
        partitions = (spot.partition,) if is_known else range(count_of_all)
        return [Spot(spot.topic, partition, life) for life in lives for partition in partitions]

    def _spot_of_log(self, log: str) -> Spot | None:
        key = key_of(*log.split("/"))
        for (topic, life), topic_id in self._world.topic_ids.items():
            if key is not None and topic_id == key.topic_id:
                return Spot(topic, key.partition, life)
        return None

    def judge(self) -> None:
        """By the checkers of real runs. Whether enough has happened is the world's own affair."""
        verdict = judge(self.events(), NO_DEMANDS)
        worst = next((finding for finding in verdict.failures), None)
        if worst is not None:
            raise Violation(f"{worst.name}, {worst.count} times: {worst.examples[0]}")

    def write(self, path: Path) -> None:
        path.write_bytes(b"".join(map(encode_line, self.events())))


def text_of(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _value_of(sents: list[Sent], spot: Spot, *, is_told: bool) -> dict[str, Any]:
    values = [text_of(value) for sent in sents for value in sent.values]
    value = {"key": str(spot), "acks": sents[0].acks, "values": values}
    if is_told:
        value["is_repeated"] = any(sent.may_stand_twice for sent in sents)
    if is_told and any(sent.outcome is Outcome.OK for sent in sents):
        value["offsets"] = [
            sent.base_offset + number if sent.outcome is Outcome.OK else None
            for sent in sents
            for number in range(len(sent.values))
        ]
    return value


def _nodes_in(text: str) -> list[int]:
    """Brokers are named n1, n2, ..."""
    return sorted({int(number) for number in _NODES.findall(text)})


class _Texts(dict[bytes, list[str | None]]):
    """The values of batches, each decoded once: all replicas have the same."""

    def __missing__(self, batch: bytes) -> list[str | None]:
        found = RecordBatch.decode(batch)
        values = found.values if not found.is_control else ()
        texts: list[str | None] = [text_of(bytes(value or b"")) for value in values]
        # Control batches hold no client's records, but take offsets.
        self[batch] = texts or [None] * found.header.record_count
        return self[batch]


def _content(replica: Replica, texts: _Texts) -> dict[str, Any]:
    start, batches = replica.log.log_start_offset, []
    data = content_of(replica, start)
    for position, header in iter_batches(data):
        batch = data[position : position + header.size]
        batches.append([header.base_offset, header.leader_epoch, crc32c(batch), texts[batch]])
    return {"log_start": start, "high_watermark": replica.high_watermark, "batches": batches}
