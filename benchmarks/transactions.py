"""What transactions cost: three brokers in processes of their own on 127.0.0.1, fsync topics.

    python -m benchmarks.transactions [alone readable interval ends ids takeover shelf]
                                      [--scale 0.1] [--rounds 5] [--root DIR]

Clients run in this process and share the machine with all brokers. Beside the figures of
transactions stand those of plain producers, which take turns with them; medians of all rounds.
`alone`: transactions of one record, of one producer and of 100. `readable`: until a consumer of
committed records has what is committed. `interval`: `exactly_once` beside at-least-once. `ends`:
what decisions cost a broker that has no part in them, and how late it hears of them, beside
snapshots. `ids`: 75,000 of them, memory and restart. `takeover`: coordinators are killed. `shelf`:
200 members of a shared transaction a second, beside 1,000 plain producers, in one partition.

What a transaction runs through is counted by `python -m benchmarks.calls transaction`; topics
without transactions are compared with an earlier commit by `python -m benchmarks.paired`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from benchmarks.brokers import end_on_signal
from benchmarks.report import Report
from benchmarks.transaction_parts.alone import bench_alone
from benchmarks.transaction_parts.ends import bench_ends
from benchmarks.transaction_parts.ids import bench_ids
from benchmarks.transaction_parts.interval import bench_interval
from benchmarks.transaction_parts.readable import bench_readable
from benchmarks.transaction_parts.shelf import bench_shelf
from benchmarks.transaction_parts.takeover import bench_takeover

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SECTIONS: dict[str, Callable[[Report, argparse.Namespace], Awaitable[None]]] = {
    "alone": bench_alone,
    "readable": bench_readable,
    "interval": bench_interval,
    "ends": bench_ends,
    "ids": bench_ids,
    "takeover": bench_takeover,
    "shelf": bench_shelf,
}


async def run(name: str, options: argparse.Namespace) -> None:
    """Cleans up as well when it is asked to end."""
    report, is_done, load = Report(f"transactions-{name}"), False, os.getloadavg()[0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        await SECTIONS[name](report, options)
        is_done = True
        nursery.cancel_scope.cancel()
    if not is_done:
        raise SystemExit(f"{name}: broken off")
    report.row(load_before=round(load, 1), load_after=round(os.getloadavg()[0], 1))
    report.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=lambda text: Path(text).resolve(), default=Path.cwd())
    options = parser.parse_args()
    if unknown := set(options.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}")
    for name in options.sections or SECTIONS:
        trio.run(run, name, options)


if __name__ == "__main__":
    main()
