"""What Spark's sink and source do against three brokers, in processes of their own on 127.0.0.1.

    python -m benchmarks.spark [sink deliveries source microbatch] [--scale 0.1] [--rounds 5]
                               [--root D]

Spark is `local[2]`; topics have three replicas, two of which must be in sync, and 12 partitions.
Everything runs in turns in one session, and ratios are medians of those of the same round. Rows
have a key of 8 bytes, and lie in Spark's memory before the clock starts.

    discard    a Python sink that is given the same Arrow batches and drops them: the limit of what
               goes from Spark to Python
    send_many  raftmq's SDK in this process with the same rows, without Spark
    made up    a Python source whose rows are there already: the limit of what goes from Python to
               Spark
    parquet    the same rows as files, uncompressed, and read from there by two tasks

`deliveries` writes the same rows with each value of the option `delivery`, in turns; CPU time is
that of Spark's Python workers. Then it copies a topic in microbatches of a few rows.

A task of a source in Python takes its time whatever it reads: topics of 2 and of 12 partitions are
read, the latter also with a task for each partition (`minRecordsPerPartition=1`) and with one for
each core. `microbatch` has 10 rows in 12 partitions.

Needs `raftmq[spark]` and Java 17.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from benchmarks.report import Report
from benchmarks.spark_parts.around import open_bench
from benchmarks.spark_parts.deliveries import bench_deliveries
from benchmarks.spark_parts.microbatch import bench_microbatch
from benchmarks.spark_parts.sink import bench_sink
from benchmarks.spark_parts.source import bench_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.spark_parts.around import Bench

SECTIONS: dict[str, Callable[[Report, Bench, int, int, int], None]] = {
    "sink": bench_sink,
    "deliveries": bench_deliveries,
    "source": bench_source,
    "microbatch": bench_microbatch,
}
SIZES = (100, 1024)
RECORDS = 1_000_000


async def run(names: list[str], root: Path, scale: float, rounds: int) -> None:
    async with open_bench(root) as bench:
        for name in names:
            report = Report(f"spark-{name}")
            for size in SIZES[:1] if name == "microbatch" else SIZES:
                section, count = SECTIONS[name], int(RECORDS * scale)
                await trio.to_thread.run_sync(section, report, bench, size, count, rounds)
            report.finish()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, default=Path())
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}")
    names = arguments.sections or list(SECTIONS)
    trio.run(run, names, arguments.root.resolve(), arguments.scale, arguments.rounds)


if __name__ == "__main__":
    main()
