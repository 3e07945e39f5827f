"""A stream that writes exactly once, and what goes wrong drawn by a seed, again and again.

Invariant: readers of committed records find each record of the source once, whichever of its
microbatches were interrupted, where, and how often, behind a shuffle by random numbers or not.

A14.3.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.copying import check, coordinator_of, without_node
from tests.spark.faults import Fault, Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from raftmq import sync
    from raftmq.testing.server import Server
    from tests.spark.copying import Copy

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("small_batches")]

BATCHES, COUNT_OF_BATCH = 5, 80
SEEDS, SEEDS_OF_SOAK = 3, 100
TASK_FAULTS: tuple[tuple[Point, Literal["raise", "kill_worker"]], ...] = (
    ("writing", "raise"), ("writing", "kill_worker"), ("written", "raise"),
    ("written", "kill_worker"),
)  # fmt: skip
DRIVER_POINTS: tuple[Point, ...] = ("commit", "committed")


@dataclass(frozen=True)
class Round:
    """Attributes:
    failed_commits: microbatch and point at which the query ends, to be started again.
    batch: one after those, in which the last thing goes wrong.
    last: at which point, and what: of a task, or the node that is killed meanwhile.
    """

    is_shuffled: bool
    failed_commits: tuple[tuple[int, Point], ...]
    batch: int
    last: tuple[Point, Literal["raise", "kill_worker", "leader", "coordinator"]]


def drawn(seed: int) -> Round:
    dice = random.Random(seed)
    *failed, batch = sorted(dice.sample(range(BATCHES), dice.randint(1, 4)))
    node_faults = [
        (point, node) for point in ("writing", *DRIVER_POINTS) for node in ("leader", "coordinator")
    ]
    return Round(
        is_shuffled=dice.random() < 0.6,
        failed_commits=tuple((number, dice.choice(DRIVER_POINTS)) for number in failed),
        batch=batch,
        last=dice.choice([*TASK_FAULTS, *node_faults]),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.soak] if seed >= SEEDS else [])
        for seed in range(SEEDS_OF_SOAK)
    ],
)
def test_a_round(
    spark: SparkSession,
    server: Server,
    client: sync.Client,
    make_copy: Callable[[str], Copy],
    seed: int,
) -> None:
    given = drawn(seed)
    copy = replace(
        make_copy("exactly_once"),
        transactional_id=f"round-{seed}",
        is_shuffled=given.is_shuffled,
    )
    limit = str(COUNT_OF_BATCH)
    for batch, point in given.failed_commits:
        fault = Fault(point, "raise", folder_of(copy, batch), batch)
        with pytest.raises(StreamingQueryException, match=f"at the point {point}"):
            copy.run(spark, fault=fault, maxOffsetsPerTrigger=limit)
    point, what = given.last
    folder = folder_of(copy, given.batch)
    if what == "raise" or what == "kill_worker":
        copy.run(spark, fault=Fault(point, what, folder, given.batch), maxOffsetsPerTrigger=limit)
    else:
        fault = Fault(point, "wait", folder, given.batch)
        with without_node(spark, server, copy, fault, maxOffsetsPerTrigger=limit) as kill:
            kill(node_of(server, client, copy, what))
    check(client, copy)


def folder_of(copy: Copy, batch: int) -> str:
    folder = Path(copy.folder) / f"fault-{batch}"
    folder.mkdir()
    return str(folder)


def node_of(
    server: Server, client: sync.Client, copy: Copy, what: Literal["leader", "coordinator"]
) -> int:
    node = server.leader_of(copy.target) if what == "leader" else coordinator_of(client, copy)
    assert node is not None
    return node
