"""What three brokers do, in processes of their own on 127.0.0.1, on the disk under `--root`.

    python -m benchmarks.brokers [produce fetch pipeline latency ...] [--scale 0.1] [--root DIR]

Topics have three replicas, two of which must be in sync. Clients run in this process and share the
machine with all brokers: on two cores, figures of a load are of four processes on two cores.
`--scale` shortens the loads, and makes what is counted fewer. `deleted` has latencies right after
topics of 300 MiB were deleted (`--scale 0.3` for smaller ones), and what of them stays open.
`stalls` is a mixed load of ten minutes, and counts what held event loops and flush rounds.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.compared import bench_compared
from benchmarks.broker_parts.deleted import bench_deleted
from benchmarks.broker_parts.failover import bench_failover
from benchmarks.broker_parts.latency import bench_latency
from benchmarks.broker_parts.pipeline import bench_pipeline
from benchmarks.broker_parts.stalls import bench_stalls
from benchmarks.broker_parts.standing import bench_idle, bench_partitions, bench_ready
from benchmarks.broker_parts.throughput import bench_fetch, bench_produce
from benchmarks.report import Report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SECTIONS: dict[str, Callable[[Report, Path, float], Awaitable[None]]] = {
    "produce": bench_produce,
    "fetch": bench_fetch,
    "pipeline": bench_pipeline,
    "latency": bench_latency,
    "compared": bench_compared,
    "deleted": bench_deleted,
    "stalls": bench_stalls,
    "failover": bench_failover,
    "idle": bench_idle,
    "ready": bench_ready,
    "partitions": bench_partitions,
}


async def run(name: str, root: Path, scale: float) -> None:
    """Cleans up as well when it is asked to end."""
    report, is_done = Report(f"broker-{name}"), False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        await SECTIONS[name](report, root, scale)
        is_done = True
        nursery.cancel_scope.cancel()
    if not is_done:
        raise SystemExit(f"{name}: broken off")
    report.finish()


async def end_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        await anext(signals)
        scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--root", type=Path, default=Path())
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        trio.run(run, name, arguments.root.resolve(), arguments.scale)


if __name__ == "__main__":
    main()
