"""The command: its arguments, the cluster with its directory, signals, and what is said in the end.

Whatever ends it, the brokers end too and the directory goes, unless it is to be kept.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from rich.console import Console

from raftmq.errors import RaftmqError
from raftmq.local.cluster import LocalCluster

from .data import FlightsMissingError, read_flights
from .demo import Demo
from .directory import new_directory
from .reading import read_everything
from .view import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .data import Flight
    from .demo import Read
    from .result import Result

BROKERS = 3
FLIGHTS_MIN = 100  # fewer have no halfway
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
INTRODUCTION = """\
Three raftmq brokers take in the flights that left New York in 2013, one record each. Halfway one
broker is killed with -9; later it comes back. In the end every flight that was acknowledged has to
be there, and in order for each aircraft.
"""


def main(given: Sequence[str] | None = None, *, read: Read = read_everything) -> int:
    """The exit code: 1 if anything is missing or wrong, as shells have it after a signal.

    Args:
        read: how to read everything back.
    """
    arguments = _arguments(given)
    with _ending_signals() as numbers:
        try:
            return _show(arguments, View(Console()), read)
        except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
            causes = _causes(error)
            if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
                sys.stderr.write("interrupted\n")
                return 128 + (numbers or [signal.SIGINT])[0]
            if not all(isinstance(one, RaftmqError | FlightsMissingError) for one in causes):
                raise
            for cause in causes:
                sys.stderr.write(f"{cause}\n")
            return 1


def _show(arguments: argparse.Namespace, view: View, read: Read) -> int:
    view.write(INTRODUCTION)
    flights = read_flights(arguments.flights)
    aircraft = len({flight.key for flight in flights})
    view.say(f"{len(flights):,} flights of {aircraft:,} aircraft, as lines of CSV")
    with new_directory(arguments.directory, is_kept=arguments.keep) as root:
        if arguments.keep:
            view.say(f"what is written stays in {root}")
        with _log_file(root / "client.log"):
            return _run(root / "cluster", flights, view, read)


def _run(directory: Path, flights: list[Flight], view: View, read: Read) -> int:
    with LocalCluster.open(directory, brokers=BROKERS, port=0) as cluster:
        view.say(f"{BROKERS} brokers are ready: {cluster.bootstrap}")
        try:
            result = trio.run(Demo(cluster, flights, view, read=read).run)
            _conclude(view, result)
            return 1 if result.faults else 0
        except BaseException:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it will not take long
            cluster.kill()  # a hand-over would only take time now
            raise


def _conclude(view: View, result: Result) -> None:
    view.say("compared what was acknowledged with what was read")
    view.show_table(("flights", "number"), result.rows)
    if result.leaderless_seconds is not None:
        view.write(f"   without a leader  {result.leaderless_seconds:.2f} s")
    view.write(f"   produced          {result.produced}")
    view.write(f"   consumed          {result.consumed}")
    view.write(f"   altogether        {view.seconds:.0f} s")
    view.write()
    view.write(result.verdict)


@contextmanager
def _ending_signals() -> Iterator[list[int]]:
    """They interrupt like Ctrl-C, which trio handles; the list has those that came."""
    came: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        came.append(number)
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGINT: signal.default_int_handler}
    handlers |= dict.fromkeys(ENDING_SIGNALS, interrupt)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """For what the client says of brokers that do not answer, which is no surprise here."""
    handler = logging.FileHandler(path)
    logger = logging.getLogger("raftmq")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [cause for one in error.exceptions for cause in _causes(one)]
    return [error]


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="flights_demo.py",
        description="Send real flights through three brokers, kill one, and compare.",
    )
    parser.add_argument("--flights", type=_count, help="how many: the first ones (all 336,776)")
    parser.add_argument("--directory", type=Path, default=Path("demo-data"), help="(demo-data)")
    parser.add_argument("--keep", action="store_true", help="do not remove what was written")
    return parser.parse_args(given)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < FLIGHTS_MIN:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {FLIGHTS_MIN} on")
    return int(text)
