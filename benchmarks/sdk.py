"""What the SDK does against three brokers, in processes of their own on 127.0.0.1.

    python -m benchmarks.sdk [hand_in produce presets preset_turns idempotence consume]
                             [--scale 0.1] [--root D]

Topics have three replicas, two of which must be in sync, and 12 partitions. "CPU" is that of the
client's process alone: what a program pays on a machine that is not the brokers'. Rates are of all
four processes on this machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from benchmarks.report import Report
from benchmarks.sdk_parts.consuming import bench_consume
from benchmarks.sdk_parts.handing_in import bench_hand_in
from benchmarks.sdk_parts.idempotence import bench_idempotence
from benchmarks.sdk_parts.presets import bench_preset_turns, bench_presets
from benchmarks.sdk_parts.producing import bench_produce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SECTIONS: dict[str, Callable[[Report, Path, float], Awaitable[None]]] = {
    "hand_in": bench_hand_in,
    "produce": bench_produce,
    "presets": bench_presets,
    "preset_turns": bench_preset_turns,
    "idempotence": bench_idempotence,
    "consume": bench_consume,
}


async def run(name: str, root: Path, scale: float) -> None:
    report = Report(f"sdk-{name}")
    await SECTIONS[name](report, root, scale)
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
