"""`raftmq consume -g` as a process, and commands whose quorum is gone: how they end, and what of it
is committed and told."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from raftmq.cli.clusters.wait_reason import NO_QUORUM
from raftmq.sync import connect
from raftmq.testing import broker, cluster
from tests.cluster.data_here import PATIENCE_SECONDS, Here, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    with broker() as server:
        yield Here(server)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_member_that_is_ended_while_it_writes(
    number: signal.Signals, exit_code: int, here: Here
) -> None:
    """Its reader is slow. The lines that it wrote are committed, and whole; it has left; the next
    one goes on behind them at once."""
    topic, group = here.topic(partitions=3), f"slow-{number.name}"
    lines = [b"%d " % number + b"x" * 200 for number in range(30_000)]
    here.run("produce", topic, stdin=b"\n".join(lines))
    with here.running("consume", topic, "-g", group, "-o", "earliest") as reader:
        assert reader.stdout is not None
        found = [reader.stdout.readline() for _ in range(3000)]
        reader.send_signal(number)
        found += reader.stdout.readlines()
        assert reader.wait(PATIENCE_SECONDS) == exit_code
        assert reader.stderr is not None
        told = b"ended by SIGTERM" if number is signal.SIGTERM else b"interrupted"
        assert reader.stderr.read().strip() == b"raftmq: " + told
    assert len(found) < len(lines)
    with connect(here.server.bootstrap) as mq:
        assert mq.admin.describe_group(group).members == ()
        offsets = mq.admin.group_offsets(group).values()
        assert sum(one.offset for one in offsets) == len(found)
    rest = here.run("consume", topic, "-g", group, "-e").stdout.splitlines()
    assert sorted([line.removesuffix(b"\n") for line in found] + rest) == sorted(lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_member_that_is_ended_while_it_waits(number: signal.Signals, here: Here) -> None:
    """At once, and it has left."""
    topic, group = here.topic(), f"idle-{number.name}"
    here.run("produce", topic, stdin=b"a\n")
    with here.running("consume", topic, "-g", group, "-o", "earliest") as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"a\n"
        reader.send_signal(number)
        assert reader.wait(PATIENCE_SECONDS) == 128 + number
    with connect(here.server.bootstrap) as mq:
        assert mq.admin.describe_group(group).members == ()
        assert [row.lag for row in mq.admin.group_lag(group)] == [0]


def test_no_lag_is_left_behind_fences(here: Here) -> None:
    """A named producer's last word in a partition is a control batch, before it and after it has
    been read to the end."""
    topic, group = here.topic(partitions=2), "fences"

    def write(generation: int) -> None:
        with connect(here.server.bootstrap) as mq:
            for last in range(2):
                name = {"name": f"etl/{last}", "generation": generation}
                with mq.producer(**name) as producer:
                    producer.send(topic, b"row", partition=0)

    def lags() -> list[int | None]:
        with connect(here.server.bootstrap) as mq:
            return [row.lag for row in mq.admin.group_lag(group)]

    write(1)
    assert len(here.run("consume", topic, "-g", group, "-e").stdout.splitlines()) == 2
    assert lags() == [0, 0]
    with here.running("consume", topic, "-g", group) as reader:
        write(2)
        wait_until(lambda: lags() == [0, 0])
        reader.send_signal(signal.SIGTERM)
        assert reader.wait(PATIENCE_SECONDS) == 143


def test_a_quorum_that_is_lost() -> None:
    """Each command says soon what it waits for, and in the end why, and where to look."""
    with cluster(3) as server:
        here = Here(server)
        topic = here.topic(replication_factor=3)
        here.run("consume", topic, "-g", "billing", "-e")
        for node_id in (2, 3):
            server.kill_node(node_id)
        commands = (
            ("group", "lag", "billing", "--timeout", "10"),
            ("produce", topic, "--timeout", "10"),
        )
        with ExitStack() as ending:
            start = time.monotonic()
            processes = [ending.enter_context(here.running(*command)) for command in commands]
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"x\n")
                process.stdin.close()
            for process in processes:
                assert process.stderr is not None
                assert process.stderr.readline().startswith(b"raftmq: waiting: ")
                assert time.monotonic() - start < 8.0
            for process in processes:
                assert process.stderr is not None
                assert NO_QUORUM.partition(":")[0].encode() in process.stderr.readlines()[-1]
                assert process.wait(PATIENCE_SECONDS) == 5
        with here.running("consume", topic, "-g", "billing", "-e") as reader:
            assert reader.stderr is not None
            assert reader.stderr.readline().startswith(b"raftmq: waiting: ")
