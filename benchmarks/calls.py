"""What one record costs in calls: of functions, at leader, followers and client, and of the system.

    python -m benchmarks.calls [request send transaction] [--records 1000] [--rounds 3] [--list]
                               [--root DIR]

Three brokers in processes of their own and the client in this one; one record of 1 KiB at a time
on one partition with three replicas, `page_cache`, acks=all. `request` sends an encoded batch to
the leader, below the SDK; `send` is `await producer.send(...)` without a linger; `transaction` is a
transaction with one such record, whose coordinator is mostly not the leader. What a process calls
at rest in as much time is subtracted.

Counts say what the code does, whatever else the machine does, so that two versions of it can be
compared where times say nothing. What still depends on time: the leader's clock of waiting fetches,
which wakes it more often the slower records come (some tens of calls, none of raftmq's own).

Functions are counted by cProfile, Python's and C's, in the thread of the event loop; a coroutine
that goes on after it has waited is called once more. System calls are counted by `strace`, of all
threads, in rounds without cProfile. `--list` prints the functions, the most called first.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, TypeAlias

import trio

from benchmarks.broker_parts.cluster import NODES, open_brokers, open_client
from benchmarks.broker_parts.topics import Case, topic_for
from benchmarks.call_parts.counting import CLIENT, Counting
from benchmarks.call_parts.system_calls import TracerFailed
from benchmarks.report import Report
from raftmq.client.client import Client
from tests.producing import produce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.call_parts.counting import Counts
    from benchmarks.call_parts.function_calls import PerRecord

    Produce: TypeAlias = Callable[[], Awaitable[object]]

CASE = Case(partitions=1, is_single=True)
RECORDS, ROUNDS = 1000, 3
ENTRY = ("-m", "benchmarks.call_parts.counted_broker")
# Called once for each message that comes in, and for each that goes out.
MESSAGE_IN, MESSAGE_OUT = (
    ("raftmq/wire/frames.py", "_cut"),
    ("raftmq/wire/frames.py", "encode_frame"),
)
LISTED_MIN = 0.05  # calls of a record; what happens less often belongs to no record
TIMEOUT_SECONDS = 60.0


@asynccontextmanager
async def open_request(brokers: Brokers, topic: str) -> AsyncIterator[Produce]:
    async with open_client(brokers) as client:
        data = CASE.batch().data
        yield partial(produce, client, topic, 0, data, timeout_seconds=TIMEOUT_SECONDS)


@asynccontextmanager
async def open_send(brokers: Brokers, topic: str) -> AsyncIterator[Produce]:
    async with (
        Client(brokers.addresses()) as client,
        client.producer(acks="all", preset="low_latency") as producer,  # without a linger
    ):
        yield partial(producer.send, topic, os.urandom(CASE.record_bytes))


@asynccontextmanager
async def open_transaction(brokers: Brokers, topic: str) -> AsyncIterator[Produce]:
    async with (
        Client(brokers.addresses()) as client,
        client.producer(transaction_id="counted", preset="low_latency") as producer,
    ):

        async def transact() -> None:
            async with producer.transaction() as tx:
                await tx.send(topic, os.urandom(CASE.record_bytes))

        yield transact


LOADS = {"request": open_request, "send": open_send, "transaction": open_transaction}


async def run(report: Report, options: argparse.Namespace) -> None:
    async with (
        open_brokers(options.root.resolve(), ENTRY) as brokers,
        open_client(brokers) as client,
        topic_for(client, CASE) as topic,
    ):
        leader = await leader_of(brokers, topic)
        for load in options.loads or LOADS:
            async with LOADS[load](brokers, topic) as one:
                counting = Counting(brokers, one, records=options.records, rounds=options.rounds)
                counts = await counting.functions()
                add_functions(report, load, leader, counts)
                if options.list:
                    list_functions(load, leader, counts)
                await system_calls(report, load, leader, counting)
        assert await leader_of(brokers, topic) == leader, "the leader has changed: run it again"


async def leader_of(brokers: Brokers, topic: str) -> int:
    return (await brokers.describe((topic,))).topics[0].partitions[0].leader


async def system_calls(report: Report, load: str, leader: int, counting: Counting) -> None:
    try:
        add_system_calls(report, load, leader, await counting.system_calls())
    except TracerFailed as error:
        sys.stderr.write(f"{load}: SYSTEM CALLS ARE NOT COUNTED: {error}\n")


def roles(leader: int) -> dict[str, int]:
    """The four processes by what they are, in the order of the tables."""
    followers = {f"follower {node}": node for node in NODES if node != leader}
    return {f"leader {leader}": leader, **followers, "client": CLIENT}


# -- Functions -------------------------------------------------------------------------------


def add_functions(report: Report, load: str, leader: int, counts: Counts) -> None:
    for role, who in roles(leader).items():
        means = means_of(counts.rounds[who])
        report.row(
            load=load,
            of=role,
            **totals("calls", counts.rounds[who]),
            **{kind: sum_of(means, kind) for kind in ("raftmq", "trio", "other", "c")},
            messages_in=messages(means, MESSAGE_IN),
            messages_out=messages(means, MESSAGE_OUT),
            at_rest_calls_s=round(counts.at_rest[who]),
        )


def totals(what: str, rounds: Sequence[PerRecord]) -> dict[str, float]:
    """The mean of all rounds, and how far they are apart."""
    sums = [sum(calls.values()) for calls in rounds]
    figures = {what: mean(sums), "least": min(sums), "most": max(sums)}
    return {name: round(figure, 1) for name, figure in figures.items()}


def means_of(rounds: Sequence[PerRecord]) -> PerRecord:
    """The most called first."""
    names = set().union(*rounds)
    means = {name: mean(calls.get(name, 0.0) for calls in rounds) for name in names}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))


def kind_of(name: str) -> str:
    """`raftmq` and `trio`: the packages; `c`: functions of C, of which cProfile has no place."""
    package = name.partition("/")[0]
    if package in ("raftmq", "trio"):
        return package
    return "c" if name.startswith("<") and ":" not in name else "other"


def sum_of(calls: PerRecord, kind: str) -> float:
    return round(sum(count for name, count in calls.items() if kind_of(name) == kind), 1)


def messages(calls: PerRecord, function: tuple[str, str]) -> float | str:
    file, called = function
    found = [
        count
        for name, count in calls.items()
        if name.startswith(f"{file}:") and name.endswith(f" {called}")
    ]
    return round(sum(found), 2) if found else "unknown"  # the function has another name by now


def list_functions(load: str, leader: int, counts: Counts) -> None:
    """Of both followers one list."""
    followers = [node for node in NODES if node != leader]
    for role, members in (("leader", [leader]), ("follower", followers), ("client", [CLIENT])):
        means = means_of([calls for who in members for calls in counts.rounds[who]])
        sys.stdout.write(f"\n{load}, {role}: calls of a record\n")
        for name, count in means.items():
            if count >= LISTED_MIN:
                sys.stdout.write(f"{count:8.2f}  {name}\n")


# -- System calls ----------------------------------------------------------------------------


def add_system_calls(report: Report, load: str, leader: int, counts: Counts) -> None:
    for role, who in roles(leader).items():
        means = means_of(counts.rounds[who])
        names = [f"{name} {count:.2f}" for name, count in means.items() if count >= LISTED_MIN]
        report.row(
            load=load,
            of=role,
            **totals("system_calls", counts.rounds[who]),
            by_name=", ".join(names),
        )


# -- Running ---------------------------------------------------------------------------------


async def end_on_signal(scope: trio.CancelScope) -> None:
    """So that the brokers' folder is removed."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        await anext(signals)
        scope.cancel()


async def run_all(options: argparse.Namespace) -> None:
    report, is_done = Report("calls"), False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        await run(report, options)
        is_done = True
        nursery.cancel_scope.cancel()
    if not is_done:
        raise SystemExit("broken off")
    report.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], default=[])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root", type=Path, default=Path())
    trio.run(run_all, parser.parse_args())


if __name__ == "__main__":
    main()
