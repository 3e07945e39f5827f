"""What consumer groups cost: three brokers, and members in processes of their own on 127.0.0.1.

    python -m benchmarks.groups [rebalance commits members] [--scale 0.1] [--root DIR]

Members are consumers of the SDK as a program has them; those of one process share a client. All
processes share this machine. `--scale` shortens the loads, and makes what is counted fewer. The
load of the machine stands in the results: others may use it, too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from benchmarks.brokers import end_on_signal
from benchmarks.group_parts.commits import bench_commits
from benchmarks.group_parts.idle import bench_members
from benchmarks.group_parts.rebalance import bench_rebalance
from benchmarks.report import Report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SECTIONS: dict[str, Callable[[Report, Path, float], Awaitable[None]]] = {
    "rebalance": bench_rebalance,
    "commits": bench_commits,
    "members": bench_members,
}


async def run(name: str, root: Path, scale: float) -> None:
    """Cleans up as well when it is asked to end."""
    report, is_done, load = Report(f"groups-{name}"), False, os.getloadavg()[0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        await SECTIONS[name](report, root, scale)
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
    parser.add_argument("--root", type=Path, default=Path())
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}")
    for name in arguments.sections or SECTIONS:
        trio.run(run, name, arguments.root.resolve(), arguments.scale)


if __name__ == "__main__":
    main()
