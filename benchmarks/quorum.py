"""What the metadata quorum takes: three processes on 127.0.0.1, on the disk under `--root`.

    python -m benchmarks.quorum [latency throughput failover size notice profile] [--scale 0.1]

Clients run in the leader's process. Beside each figure stands its aim; that of the latency depends
on the disk, which is measured in the same run: one command cannot take less than two fdatasyncs
one after the other. `notice`: how long after the answer to a command the metadata of the other
nodes show it, which is how late leaders hear what became of a transaction. All three voters share
this machine, a cluster's do not. `profile` shows where the time of a leader's loop goes, and is not
part of a plain run.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.log import folder
from benchmarks.quorum_parts.cluster import NODES, OBSERVER, open_cluster
from benchmarks.quorum_parts.figures import percentile, rounded_ms, sync_pairs
from benchmarks.quorum_parts.full_size import INDEX, full_size_image, write_directories
from benchmarks.report import Report

if TYPE_CHECKING:
    from benchmarks.quorum_parts.cluster import Cluster, VoterProcess

SECONDS = 5.0  # of each load
LONG_LOAD_SECONDS = 12.0  # of one during which a snapshot is written
PAIRS = 200
FAILOVERS = 20
CLIENTS = 64
ROUNDS = 3

AIM_COMMANDS_PER_SECOND = 10_000  # of 64 clients, with fsync
AIM_OVER_PAIR_MS = 1.0
AIM_FAILOVER_MS = 600
AIM_STALL_MS = 50
AIM_RESTART_SECONDS = 5
AIM_RESIDENT_MIB = 1024


# -- latency and throughput ----------------------------------------------------------------


async def bench_latency(report: Report, root: Path, scale: float) -> None:
    for sync in (True, False):
        await bench_loads(report, root, scale, sync=sync, clients=[1] * ROUNDS)


async def bench_throughput(report: Report, root: Path, scale: float) -> None:
    for sync in (True, False):
        await bench_loads(report, root, scale, sync=sync, clients=[64, 1024] * ROUNDS)


async def bench_loads(
    report: Report, root: Path, scale: float, *, sync: bool, clients: list[int]
) -> None:
    with folder(root) as path:
        async with open_cluster(path, sync=sync) as cluster:
            for number in clients:
                pairs = sync_pairs(path, PAIRS)
                await load_row(report, await cluster.leader(), pairs, scale, number, sync=sync)


async def load_row(
    report: Report,
    leader: VoterProcess,
    pairs: list[float],
    scale: float,
    clients: int,
    *,
    sync: bool,
) -> None:
    done = await leader.ask("load", clients=clients, seconds=SECONDS * scale)
    count, latencies = len(done["latencies"]), done["latencies"]
    aims = {
        1: f"{rounded_ms(median(pairs)) + AIM_OVER_PAIR_MS:.2f} ms" if sync else "",
        CLIENTS: f"{AIM_COMMANDS_PER_SECOND:,} 1/s" if sync else "",
    }
    report.row(
        fsync="on" if sync else "off",
        clients=clients,
        commands_s=round(count / done["seconds"]),
        p50_ms=rounded_ms(median(latencies)),
        p99_ms=rounded_ms(percentile(latencies, 99)),
        cpu_us=round(done["cpu_seconds"] / count * 1e6),
        pair_p50=rounded_ms(median(pairs)),
        pair_p99=rounded_ms(percentile(pairs, 99)),
        aim=aims.get(clients, ""),
    )


# -- failover ------------------------------------------------------------------------------


async def bench_failover(report: Report, root: Path, scale: float) -> None:
    leads: list[float] = []
    acknowledged: list[float] = []
    with folder(root) as path:
        async with open_cluster(path, probes=True) as cluster:
            for _ in range(max(3, int(FAILOVERS * scale))):
                await fail_over(cluster, leads, acknowledged)
    for what, times in (("another node leads", leads), ("first acknowledged", acknowledged)):
        report.row(
            after_kill_9=what,
            times=len(times),
            p50_ms=round(median(times) * 1e3),
            p99_ms=round(percentile(times, 99) * 1e3),
            max_ms=round(max(times) * 1e3),
            aim=f"p99 {AIM_FAILOVER_MS} ms" if times is leads else "",
        )


async def fail_over(cluster: Cluster, leads: list[float], acknowledged: list[float]) -> None:
    leader = await cluster.leader()
    await leader.event("acknowledged")
    killed = await leader.kill()
    for name, times in (("leader", leads), ("acknowledged", acknowledged)):
        times.append(await first_event(cluster, name, killed) - killed)
    new_leader = await cluster.leader()
    await cluster.start(leader.node_id)
    version = (await new_leader.ask("status"))["version"]
    await cluster.wait_version(cluster.voters[leader.node_id], version)
    await trio.sleep(0.3)  # a light load, and everybody connected


async def first_event(cluster: Cluster, name: str, since: float) -> float:
    """Of the voters that run; all times are of one clock."""
    times: list[float] = []
    async with trio.open_nursery() as nursery:

        async def wait(voter: VoterProcess) -> None:
            times.append(await voter.event(name, since))
            nursery.cancel_scope.cancel()

        for voter in cluster.running():
            nursery.start_soon(wait, voter)
    return min(times)


# -- full size -----------------------------------------------------------------------------


async def bench_size(report: Report, root: Path, scale: float) -> None:
    add = partial(size_row, report)
    with folder(root) as path:
        write_full_size(add, path, scale)
        async with open_cluster(path) as cluster:
            await bench_restart(add, cluster)
            await bench_snapshot(add, cluster, scale)
            await bench_catch_up(add, cluster)


def size_row(report: Report, what: str, value: float, unit: str, aim: float | None = None) -> None:
    shown_aim = "" if aim is None else f"{aim:,} {unit}"
    report.row(what=what, value=round(value, 2), unit=unit, aim=shown_aim)


def write_full_size(add: partial[None], path: Path, scale: float) -> None:
    image = full_size_image(scale)
    size = write_directories({node: path / f"voter-{node}" for node in NODES}, image)
    add("partitions", len(image.partitions), "")
    add("committed offsets", sum(map(len, image.offsets.values())), "")
    add("snapshot", size / (1 << 20), "MiB")


async def bench_restart(add: partial[None], cluster: Cluster) -> None:
    """One voter after the other, so that they do not share the processors."""
    opened, served = [], []
    for node in NODES:
        await cluster.voters[node].kill()
        begin = time.monotonic()
        await cluster.start(node)
        opened.append(cluster.voters[node].ready["seconds"])
        served.append(time.monotonic() - begin)
    add("restart: open_quorum", median(opened), "s", AIM_RESTART_SECONDS)
    add("restart: from the start of the process", median(served), "s", AIM_RESTART_SECONDS)


async def bench_snapshot(add: partial[None], cluster: Cluster, scale: float) -> None:
    """Under load, and the same load without a snapshot: this machine has stalls of its own."""
    leader = await cluster.leader()
    status = await leader.ask("status")
    add("memory of the leader, restarted", status["resident_mib"], "MiB", AIM_RESIDENT_MIB)
    await leader.ask("stalls")
    plain = await leader.ask("load", clients=CLIENTS, seconds=SECONDS * scale)
    add("64 clients: commands", len(plain["latencies"]) / plain["seconds"], "1/s")
    await add_stalls(add, "64 clients", leader)
    for number in range(1, ROUNDS + 1):
        await snapshot_under_load(add, f"64 clients, snapshot {number}", cluster, leader)
    status = await leader.ask("status")
    add("memory of the leader, after snapshots", status["resident_mib"], "MiB", AIM_RESIDENT_MIB)


async def snapshot_under_load(
    add: partial[None], what: str, cluster: Cluster, leader: VoterProcess
) -> None:
    """Stalls and commands from when it is due until it is in place."""
    directory = cluster.directory(leader.node_id)
    before = set(directory.glob("*.snapshot"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(leader.ask, "load", clients=CLIENTS, seconds=LONG_LOAD_SECONDS))
        await trio.sleep(LONG_LOAD_SECONDS / 4)
        await leader.ask("stalls")
        version, begin = (await leader.ask("status"))["version"], time.monotonic()
        await leader.ask("snapshot")
        while set(directory.glob("*.snapshot")) <= before:  # noqa: ASYNC110  # another process
            await trio.sleep(0.01)
        seconds = time.monotonic() - begin
        await add_stalls(add, what, leader)
        add(f"{what}: it takes", seconds, "s")
        count = (await leader.ask("status"))["version"] - version
        add(f"{what}: commands meanwhile", count / seconds, "1/s")


async def bench_catch_up(add: partial[None], cluster: Cluster) -> None:
    """A voter that has lost its disk; the leader's log does not reach back to the beginning."""
    leader = await cluster.leader()
    lost = next(voter for voter in cluster.running() if voter is not leader)
    await lost.kill()
    lost_directory = cluster.directory(lost.node_id)
    lost_directory.rename(lost_directory.with_suffix(".lost"))
    version = (await leader.ask("status"))["version"]
    await leader.ask("stalls")
    await cluster.start(lost.node_id)
    voter = cluster.voters[lost.node_id]
    await voter.ask("stalls")
    caught_up = await cluster.wait_version(voter, version)
    add("catch-up by snapshot", caught_up - voter.ready["at"], "s")
    for who, name in ((leader, "leader"), (voter, "receiver")):
        await add_stalls(add, f"catch-up: {name}", who)
        status = await who.ask("status")
        assert status["version"] >= version >= INDEX, f"{status}"
        add(f"catch-up: {name}, memory", status["resident_mib"], "MiB", AIM_RESIDENT_MIB)


async def add_stalls(add: partial[None], what: str, voter: VoterProcess) -> None:
    stalls = await voter.ask("stalls")
    add(f"{what}: longest stall", stalls["longest"] * 1e3, "ms", AIM_STALL_MS)
    add(f"{what}: longest collection", stalls["longest_collection"] * 1e3, "ms")


# -- notice --------------------------------------------------------------------------------

NOTICE_SECONDS = 20.0
DECISIONS_PER_SECOND = 20.0  # of one producer that ends a transaction every 50 ms
LOAD_CLIENTS = 16
AIM_NOTICE_MS, AIM_NOTICE_SNAPSHOT_MS = 50, 500


async def bench_notice(report: Report, root: Path, scale: float) -> None:
    with folder(root) as path:
        write_directories({node: path / f"voter-{node}" for node in NODES}, full_size_image(scale))
        async with open_cluster(path) as cluster:
            await cluster.start(OBSERVER)
            leader = await cluster.leader()
            version = (await leader.ask("status"))["version"]
            for node in cluster.running():
                await cluster.wait_version(node, version)
            for what in ("idle", "loaded", "beside snapshots"):
                await notice_rows(report, cluster, leader, what)


async def notice_rows(report: Report, cluster: Cluster, leader: VoterProcess, what: str) -> None:
    answered: list[tuple[int, float]] = []
    seen: dict[int, list[tuple[int, float]]] = {}

    async def watch(node: VoterProcess) -> None:
        seen[node.node_id] = (await node.ask("seen", seconds=NOTICE_SECONDS + 5))["seen"]

    async def decide() -> None:
        done = await leader.ask("paced", seconds=NOTICE_SECONDS, per_second=DECISIONS_PER_SECOND)
        answered.extend(done["answered"])

    async with trio.open_nursery() as nursery:
        for node in cluster.running():
            nursery.start_soon(watch, node)
        nursery.start_soon(decide)
        if what == "loaded":
            seconds = NOTICE_SECONDS
            nursery.start_soon(partial(leader.ask, "load", clients=LOAD_CLIENTS, seconds=seconds))
        if what == "beside snapshots":
            for node_id in NODES:
                await trio.sleep(NOTICE_SECONDS / 5)
                nursery.start_soon(cluster.voters[node_id].ask, "snapshot")
    others = [node for node in cluster.running() if node is not leader]
    for node in others:
        late = [max(0.0, first_seen(seen[node.node_id], v) - at) for v, at in answered]
        aim = AIM_NOTICE_SNAPSHOT_MS if what == "beside snapshots" else AIM_NOTICE_MS
        report.row(
            quorum=what,
            node="observer" if node.node_id == OBSERVER else "voter",
            decisions=len(late),
            p50_ms=rounded_ms(median(late)),
            p99_ms=rounded_ms(percentile(late, 99)),
            max_ms=rounded_ms(max(late)),
            aim=f"p99 {aim} ms",
        )


def first_seen(seen: list[tuple[int, float]], version: int) -> float:
    return next(at for found, at in seen if found >= version)


# -- profile -------------------------------------------------------------------------------


async def bench_profile(report: Report, root: Path, scale: float) -> None:
    """On stderr, for one client and for many."""
    with folder(root) as path:
        async with open_cluster(path) as cluster:
            for clients in (1, CLIENTS):
                leader = await cluster.leader()
                await leader.ask(
                    "profile", clients=clients, seconds=SECONDS * scale, sort="tottime"
                )


SECTIONS = {
    "latency": bench_latency,
    "throughput": bench_throughput,
    "failover": bench_failover,
    "size": bench_size,
    "notice": bench_notice,
    "profile": bench_profile,
}
PLAIN = ["latency", "throughput", "failover", "size"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--root", type=Path, default=Path())
    arguments = parser.parse_args()
    for name in arguments.sections or PLAIN:
        report = Report(f"quorum-{name}")
        trio.run(SECTIONS[name], report, arguments.root.resolve(), arguments.scale)
        report.finish()


if __name__ == "__main__":
    main()
