"""Faults that fall on machines that keep accounts, and what the history says of them.

Worker threads are left out: what runs in one runs at once, so that the clock that jumps sees it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from jepsen_like.history.event import NEMESIS, Event, Type
from jepsen_like.history.recorder import Recorder
from jepsen_like.nemesis.kinds import KINDS
from jepsen_like.nemesis.nemesis import Nemesis, in_thread
from jepsen_like.nemesis.schedule import ALONE, FaultEvent, schedule
from raftmq.broker.meta import QUORUM_FOLDER
from raftmq.metadata.raft.background import REFUSED_NAME
from tests.jepsen_like.nemesis.scripted_machines import ScriptedMachines, ScriptedView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from jepsen_like.nemesis.fault import RunInThread

T = TypeVar("T")
SLOW = ("old-directory", "part-kill", "pause-kill")  # they wait in their threads


async def at_once(function: Callable[[], T], /) -> T:
    await trio.lowlevel.checkpoint()
    return function()


class Stage:
    """All that a run needs."""

    def __init__(self, count: int = 3, root: Path | None = None) -> None:
        self.machines = ScriptedMachines(count, *([root] if root else []))
        self.view = ScriptedView({"a-0": 1}, 2)
        self.recorder = Recorder(trio.current_time)

    def nemesis(self) -> Nemesis:
        parts = (self.machines, self.view, self.recorder)
        return Nemesis(*parts, seed=1, run_in_thread=at_once)

    async def run(
        self, *fault_events: FaultEvent, seconds: float = math.inf, in_thread: RunInThread = at_once
    ) -> None:
        """Strike, heal, and wait until all nodes are ready, or are known not to be."""
        parts = (self.machines, self.view, self.recorder)
        nemesis = Nemesis(*parts, seed=1, run_in_thread=in_thread)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.caretaker.run)
            await nemesis.strike(fault_events, seconds=seconds)
            await nemesis.caretaker.wait_nobody_awaited()
            nursery.cancel_scope.cancel()

    def told(self, f: str) -> list[Event]:
        return [event for event in self.recorder.events if event.f == f]

    def spans(self, f: str) -> list[tuple[float, float]]:
        times = [event.time for event in self.told(f)]
        return list(zip(times[::2], times[1::2], strict=True))


def fault_event(
    kind: str, at: float = 1.0, whom: str = "one", seconds: float = 2.0, **params: Any
) -> FaultEvent:
    lane = KINDS[kind].lane
    return FaultEvent(at, lane, kind, whom, seconds, params)


async def test_a_stroke_is_told_when_it_begins_and_when_it_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The leader is killed for two seconds: who it was, which part it played, for how long."""
    stage = Stage()
    await stage.run(fault_event("kill", 1.0, "leader", 2.0))
    begun, over = stage.told("kill")
    assert (begun.process, begun.type, over.type) == (NEMESIS, Type.INVOKE, Type.INFO)
    assert begun.value == {"nodes": [1], "whom": "leader", "key": "a-0"}
    assert over.value == {**begun.value, "killed": [1]}
    assert (begun.time, over.time) == (1.0, 3.0)
    assert stage.machines.is_well()


async def test_lanes_run_beside_each_other(autojump_clock: trio.testing.MockClock) -> None:
    """A pause within a partition; in one lane the second fault waits for the first."""
    stage = Stage()
    await stage.run(
        fault_event("partition", 1.0, "halves", 6.0),
        fault_event("pause", 2.0, seconds=2.0),
        fault_event("pause", 2.5, seconds=1.0),
    )
    assert stage.spans("partition") == [(1.0, 7.0)]
    assert stage.spans("pause") == [(2.0, 4.0), (5.0, 6.0)]


async def test_rolling_is_one_fault_for_each_node(autojump_clock: trio.testing.MockClock) -> None:
    """Three nodes, one after the other, each when the one before it is ready."""
    stage = Stage()
    await stage.run(fault_event("kill", 1.0, "rolling", 3.0))
    events = stage.told("kill")
    assert sorted(event.value["nodes"] for event in events[::2]) == [[1], [2], [3]]
    starts = [call for call in stage.machines.calls if "start" in call or "kill" in call]
    assert [call.split()[0] for call in starts] == ["kill", "start"] * 3


async def test_when_time_is_over_everything_is_undone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """In the midst of three faults, and faults that never fall."""
    stage = Stage()
    await stage.run(
        fault_event("pause", 1.0, "all", 60.0),
        fault_event("partition", 1.0, "halves", 60.0),
        fault_event("clock", 1.0, "all", 60.0, offset_ms=500, period_seconds=0.001),
        fault_event("kill", 70.0),
        seconds=10.0,
    )
    assert stage.machines.is_well()
    assert stage.spans("pause") == stage.spans("partition") == stage.spans("clock") == [(1.0, 10.0)]
    assert not stage.told("kill")
    assert not stage.told("heal")


async def test_whoever_cancels_leaves_nothing_broken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Somebody interrupts the run while a disk is full and a node dead."""
    stage = Stage()
    with trio.move_on_after(5.0):
        await stage.run(
            fault_event("disk-full", 1.0, "all", 60.0), fault_event("clock", 2.0, offset_ms=9)
        )
    assert stage.machines.is_well()


async def test_nobody_starts_a_node_in_the_midst_of_what_ends_a_fault(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Time is over, and the end of the fault takes longer than whoever looks after nodes waits."""
    stage = Stage()

    async def slowly(function: Callable[[], T], /) -> T:
        with trio.CancelScope(shield=True):
            await trio.sleep(3.0)
        return function()

    await stage.run(fault_event("powercut", 1.0, "all", 60.0), seconds=10.0, in_thread=slowly)
    assert not stage.told("restart")
    starts = [call for call in stage.machines.calls if call.startswith("start")]
    assert starts == ["start 1", "start 2", "start 3"]
    assert stage.machines.is_well()


async def test_what_healing_cannot_do_is_told(autojump_clock: trio.testing.MockClock) -> None:
    """A paused process that does not go on: the others do, and the history names it."""
    stage = Stage()
    stage.machines.broken = {"resume 2"}
    await stage.run(fault_event("pause", 1.0, "all", 2.0))
    [event] = stage.told("heal")
    assert event.value["problems"] == ["paused node 2: OSError: resume does not work on node 2"]
    assert stage.machines.paused == {2}


async def test_a_fault_that_fails_is_told_and_undone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The disk of one node cannot be filled; faults go on."""
    stage = Stage()
    stage.machines.broken = {"fill 2"}
    await stage.run(fault_event("disk-full", 1.0, "all"), fault_event("kill", 5.0))
    assert stage.told("disk-full")[1].value["error"] == "OSError: fill does not work on node 2"
    assert len(stage.told("kill")) == 2
    assert stage.machines.is_well()


async def test_a_node_that_ends_by_itself_is_started_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its disk failed, it ended, and whoever looks after it does not wait for the disk."""
    stage = Stage()

    async def end() -> None:
        await trio.sleep(2.0)
        stage.machines.end_by_itself(1, 74)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        await stage.run(fault_event("fsync-eio", 1.0, "leader", 5.0))
    [restart] = stage.told("restart")
    assert restart.value == {"nodes": [1], "status": 74, "emptied": False}
    assert 2.0 < restart.time < 5.0
    assert stage.machines.is_well()


async def test_a_node_that_a_fault_holds_down_is_not_started(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Killed for ten seconds: nobody restarts it meanwhile."""
    stage = Stage()
    await stage.run(fault_event("kill", 1.0, "all", 10.0))
    assert not stage.told("restart")


async def test_a_node_that_does_not_get_ready_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It runs and never serves: known after a minute, and the run is over then."""
    stage = Stage()
    stage.machines.never_ready = {1}
    await stage.run(fault_event("kill", 1.0, "leader", 2.0))
    [event] = stage.told("not-ready")
    assert event.value == {"nodes": [1], "seconds": 60.0, "during": []}
    assert 63.0 <= event.time < 66.0


async def test_a_node_that_ends_at_every_start_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its start fails again and again: restarted all the time, and given up after a minute."""
    stage = Stage()
    stage.machines.on_start = stage.machines.end_by_itself
    await stage.run(fault_event("kill", 1.0, "leader", 2.0))
    assert stage.told("not-ready")
    assert len(stage.told("restart")) > 10


async def test_a_disk_loses_nothing_while_replicas_lag(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not in sync for all of its patience: skipped, said why, and no node was touched."""
    stage = Stage()
    stage.view.is_in_sync = False
    await stage.run(fault_event("bitflip", 1.0, file="segment", logs=1, bits=1))
    begun, over = stage.told("bitflip")
    assert over.value["skipped"] == "replicas were not in sync"
    assert over.value["nodes"] == begun.value["nodes"]
    assert not [call for call in stage.machines.calls if call.startswith("kill")]


async def test_a_data_fault_waits_until_all_are_in_sync_for_a_while(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """In sync after five seconds, and then not for a moment."""
    stage = Stage(root=tmp_path)
    (tmp_path / "n1").mkdir()

    async def change() -> None:
        for seconds, is_in_sync in ((0.0, False), (5.0, True), (1.0, False), (1.0, True)):
            await trio.sleep(seconds)
            stage.view.is_in_sync = is_in_sync

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await stage.run(fault_event("truncate", 1.0, "leader", file="segment", logs=1))
    [(begin, end)] = stage.spans("truncate")
    assert 8.7 <= begin <= 9.5
    assert end == begin + 2.0
    assert stage.told("truncate")[1].value["damaged"] == []


async def test_an_empty_disk_of_the_caretaker_counts_as_well(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """A restored directory was refused late, and emptied: the next disk waits until that voter
    is enrolled."""
    stage = Stage(root=tmp_path)
    for node in (1, 2, 3):
        (tmp_path / f"n{node}").mkdir()
    refused = tmp_path / "n2" / QUORUM_FOLDER / REFUSED_NAME
    refused.parent.mkdir()
    refused.touch()
    stage.machines.end_by_itself(2)
    nemesis = stage.nemesis()
    nemesis.caretaker.restored.add(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(nemesis.caretaker.run)
        await nemesis.strike([fault_event("truncate", 1.0, "leader", file="segment", logs=1)])
        nursery.cancel_scope.cancel()
    [restart] = stage.told("restart")
    assert restart.value["emptied"]
    [(begin, _)] = stage.spans("truncate")
    assert begin >= restart.time + 10.0


async def test_whoever_needs_the_network_has_it_whole(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """A journal is damaged after a partition is over, and the next partition waits for it."""
    stage = Stage(root=tmp_path)
    for node in (1, 2, 3):
        (tmp_path / f"n{node}").mkdir()
    await stage.run(
        fault_event("partition", 1.0, "halves", 5.0),
        fault_event("partition", 8.0, "halves", 5.0),
        fault_event("journal-damage", 2.0, "one", 4.0, file="journal", bits=1),
    )
    [(begin, end)] = stage.spans("journal-damage")
    assert begin >= 8.0
    assert stage.spans("partition")[1][0] >= end


async def test_a_fault_that_is_to_be_alone_waits_for_the_recovery_before_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Replicas are in sync again ten seconds after the first one; but nobody waits for ever."""
    stage = Stage()

    async def lag(seconds: float) -> None:
        stage.view.is_in_sync = False
        await trio.sleep(seconds)
        stage.view.is_in_sync = True

    for seconds, expected in ((10.0, 12.0), (100.0, 60.0)):
        fault_events = [fault_event("kill")._replace(lane=ALONE)]
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lag, seconds)
            await stage.run(*fault_events)
        begin, _ = stage.spans("kill")[-1]
        assert abs(begin - (began_at + expected)) < 1.5


async def test_an_endless_partition_makes_it_give_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The network is broken for longer than a data fault waits."""
    stage = Stage()
    await stage.run(
        fault_event("partition", 1.0, "halves", 30.0),
        fault_event("old-directory", 2.0),
    )
    skipped = stage.told("old-directory")[1].value["skipped"]
    assert skipped == "the network was broken all the time"


async def test_a_whole_schedule_leaves_everything_well(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """A minute of all kinds on five nodes with empty disks, of several seeds."""
    for seed in range(3):
        stage = Stage(5, tmp_path)
        for node in stage.machines.node_ids:
            (tmp_path / f"n{node}").mkdir(exist_ok=True)
        kinds = [name for name in KINDS if name not in SLOW]
        fault_events = schedule(seed=seed, kinds=kinds, seconds=60, node_count=5)
        await stage.run(*fault_events, seconds=60)
        assert stage.machines.is_well()
        assert not stage.told("heal")
        faults = [event for event in stage.recorder.events if event.type is Type.INVOKE]
        assert len(faults) > 0.7 * len(fault_events)


async def test_real_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in worker threads, for a moment of real time."""
    stage = Stage()
    monkeypatch.setattr("jepsen_like.nemesis.caretaker.LOOK_SECONDS", 0.001)
    await stage.run(fault_event("kill", 0.0, "all", 0.001), in_thread=in_thread)
    assert len(stage.told("kill")) == 2
    assert stage.machines.is_well()
