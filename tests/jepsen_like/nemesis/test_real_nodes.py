"""Faults on real brokers, under load: they notice what they must, and are whole again.

Needs neither root nor a network of its own. What clients are told meanwhile is not judged here.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio

from jepsen_like.history.event import Type
from jepsen_like.history.recorder import Recorder
from jepsen_like.nemesis.nemesis import Nemesis
from jepsen_like.nemesis.schedule import ALONE, FaultEvent
from jepsen_like.nodes.cluster import NodeCluster
from jepsen_like.workloads.registry import make_workload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jepsen_like.workloads.workload import Workload

pytestmark = pytest.mark.cluster

LOAD_SECONDS = 2.0
UNTIL_CHECKPOINT_SECONDS = 7.0  # one comes every five
WHOLE_SECONDS = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NodeCluster]:
    with NodeCluster(tmp_path, wants_disks=False) as cluster:
        cluster.start_all()
        yield cluster


async def strike(
    cluster: NodeCluster,
    kind: str,
    seconds: float,
    *,
    load_seconds: float = LOAD_SECONDS,
    **params: Any,
) -> dict[str, Any]:
    """Let one fault fall upon the leader of some key; what the history says of it in the end."""
    recorder = Recorder(time.monotonic)
    workload = make_workload(
        "queue",
        bootstrap=cluster.bootstrap,
        recorder=recorder,
        random=Random(1),
        node_count=3,
        processes=2,
        rate=60.0,
        acks=("all",),
    )
    await workload.prepare()
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workload.run, stop)
        await trio.sleep(load_seconds)
        fault_events = [FaultEvent(0.0, ALONE, kind, "leader", seconds, params)]
        nemesis = Nemesis(cluster, workload.view(), recorder, seed=1)
        nursery.start_soon(nemesis.caretaker.run)
        await nemesis.strike(fault_events)
        await nemesis.caretaker.wait_nobody_awaited()
        await wait_whole(workload)
        stop.set()
        nursery.cancel_scope.cancel()
    events = [event for event in recorder.events if event.process == "nemesis"]
    assert [(event.type, event.f) for event in events] == [(Type.INVOKE, kind), (Type.INFO, kind)]
    assert "error" not in events[1].value
    return dict(events[1].value)


async def wait_whole(workload: Workload) -> None:
    with trio.fail_after(WHOLE_SECONDS):
        while not workload.view().in_sync():  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.1)


def log_of(cluster: NodeCluster, value: dict[str, Any]) -> str:
    [node] = value["nodes"]
    path: Path = cluster.log_path(node)
    return path.read_text()


@pytest.mark.parametrize("is_running", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_flipped_bits_are_found_and_mended(cluster: NodeCluster, is_running: bool) -> None:
    """Below the recovery points, in every log that a node leads whenever it can: whoever reads
    there gets what was written, and the node has it again from the others.
    """
    value = await strike(
        *(cluster, "bitflip", 0.5),
        load_seconds=UNTIL_CHECKPOINT_SECONDS,
        file="segment",
        logs=1000,
        bits=1,
        is_running=is_running,
    )
    assert value["damaged"]
    assert value["read"] == "all"
    assert value["repaired"] == [True] * len(value["damaged"])
    log = log_of(cluster, value)
    assert log.count("rot found") + log.count("log is damaged") == len(value["damaged"])


@pytest.mark.soak
async def test_cut_segments_are_found_and_mended(cluster: NodeCluster) -> None:
    """All logs of a node end below what was durable."""
    value = await strike(
        *(cluster, "truncate", 0.5),
        load_seconds=UNTIL_CHECKPOINT_SECONDS,
        file="segment",
        logs=1000,
    )
    assert value["damaged"]
    assert log_of(cluster, value).count("log is damaged") >= len(value["damaged"])


async def test_a_damaged_journal_is_replaced(cluster: NodeCluster) -> None:
    """The node does not start on it, gets an empty directory, and is a full member again."""
    value = await strike(cluster, "journal-damage", 0.5, file="journal", bits=1)
    assert value["damaged"]
    assert (value["refused"], value["emptied"]) == (True, True)
    assert "cannot be trusted any more" in log_of(cluster, value)


async def test_an_older_directory_is_refused(cluster: NodeCluster) -> None:
    """Put back after the node was registered anew: others refuse it, an empty one is accepted."""
    value = await strike(cluster, "old-directory", 3.0)
    assert (value["registered_anew"], value["put_back"]) == (True, True)
    assert (value["refused"], value["emptied"]) == (True, True)
