"""The command: its arguments, the cluster with its directory, and what is said in the end.

Whatever ends it, brokers and the streaming program end too and the directory goes, unless it is to
be kept: they watch for the end of their parent.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from examples.flights.data import FlightsMissingError, read_flights
from examples.flights.directory import new_directory
from examples.flights.view import View
from raftmq.errors import RaftmqError
from raftmq.local.cluster import LocalCluster

from .driver_process import DriverFailedError
from .result import LARGEST_TITLES, TITLES
from .totals import hour_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.flights.data import Flight

    from .result import Result

BROKERS = 3
FLIGHTS_MIN = 10_000  # fewer are over before Spark gives out the first hours
INTRODUCTION = """\
Three raftmq brokers hold the flights that left New York in 2013. Spark Structured Streaming adds
up the delays of each carrier and hour, into a second topic and into Parquet. An hour is given out
once flights of a week later are there. In the middle it is killed with -9 and started again. In
the end both have to be what plain Python comes to.
"""


class NotInstalledError(Exception):
    """Something that the demonstration needs is not there."""


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 1 if anything is missing or wrong, as shells have it after Ctrl-C."""
    arguments = _arguments(given)
    try:
        _check_installed()
        return _show(arguments, View(Console()))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 128 + signal.SIGINT
    except (RaftmqError, FlightsMissingError, NotInstalledError, DriverFailedError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _check_installed() -> None:
    if shutil.which("java") is None:
        raise NotInstalledError("no java is on the PATH: Spark needs Java 17")
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise NotInstalledError(
                f"{package} is not installed: pip install -e '.[spark,demo]', or let"
                " `make spark-demo` do it"
            )


def _show(arguments: argparse.Namespace, view: View) -> int:
    view.write(INTRODUCTION)
    flights = sorted(read_flights(), key=hour_of)[: arguments.flights]
    view.say(f"{len(flights):,} flights, as lines of CSV")
    with new_directory(arguments.directory, is_kept=arguments.keep) as root:
        if arguments.keep:
            view.say(f"what is written stays in {root}")
        logging.basicConfig(filename=root / "client.log")  # of brokers that are slow to answer
        result = _run(root, flights, view)
    _conclude(view, result)
    return 1 if result.faults else 0


def _run(root: Path, flights: list[Flight], view: View) -> Result:
    from .demo import Demo  # which needs pyspark

    with LocalCluster.open(root / "cluster", brokers=BROKERS, port=0) as cluster:
        view.say(f"{BROKERS} brokers are ready: {cluster.bootstrap}")
        try:
            return Demo(cluster.bootstrap, root / "spark", flights, view).run()
        except BaseException:
            cluster.kill()  # a hand-over would only take time now
            raise


def _conclude(view: View, result: Result) -> None:
    view.show_table(TITLES, result.rows)
    view.write("   the largest mean delays:")
    view.show_table(LARGEST_TITLES, result.largest)
    view.write(f"   microbatches      {result.batches}; {result.interrupted}")
    view.write(f"   altogether        {view.seconds:.0f} s")
    view.write()
    view.write(result.verdict)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="spark_demo.py",
        description="Add up real delays in a stream of Spark, kill it, and compare.",
    )
    parser.add_argument("--flights", type=_count, help="how many: the first ones (all 336,776)")
    parser.add_argument("--directory", type=Path, default=Path("demo-data"), help="(demo-data)")
    parser.add_argument("--keep", action="store_true", help="do not remove what was written")
    return parser.parse_args(given)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < FLIGHTS_MIN:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {FLIGHTS_MIN} on")
    return int(text)
