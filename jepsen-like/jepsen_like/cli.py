"""The command line of jepsen-like: one run, the report of a run again, or a ladder of runs.

Owns options and exit codes: 0 passed, 1 failed, 2 cannot be done as asked or broke down, 3 proves
nothing, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from random import randrange
from typing import TYPE_CHECKING

from jepsen_like.history.event import BadHistory
from jepsen_like.nemesis.kinds import parts
from jepsen_like.nemesis.registry import KINDS, UnknownKind, check_kinds
from jepsen_like.settings import ACKS, NODES, WORKLOADS, BadSettings, RunSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULTS = RunSettings()
EXIT = {"passed": 0, "failed": 1, "unknown": 3}
CANNOT, INTERRUPTED = 2, 130
TOLD_INTERRUPTED = "interrupted; `report` with the run's folder tells what was seen up to then"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome: str = arguments.act(arguments)
    except (BadSettings, BadHistory, UnknownKind, OSError) as error:
        return _end(CANNOT, f"{error}")
    except KeyboardInterrupt:
        return _end(INTERRUPTED, TOLD_INTERRUPTED)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            return _end(INTERRUPTED, TOLD_INTERRUPTED)
        return _break_down()
    except Exception:
        return _break_down()
    return EXIT[outcome]


def _interrupt(*_: object) -> None:
    """SIGTERM undoes everything, as Ctrl-C does; for Ctrl-C the event loop has its own handling."""
    signal.raise_signal(signal.SIGINT)


def _break_down() -> int:
    """The harness itself has failed: exit code 2, as that says nothing about what it tests."""
    traceback.print_exc()
    return _end(
        CANNOT,
        "it broke down, see above, which says nothing of what it tests; of a run, "
        "`report` with its folder tells what was seen up to then",
    )


def _end(status: int, what: str) -> int:
    sys.stderr.write(f"jepsen-like: {what}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python jepsen-like",
        description="Start a real cluster, use it, break it, and judge what clients were told.",
    )
    commands = parser.add_subparsers(required=True, metavar="run | report | suite")
    _add_run(commands.add_parser("run", help="one run; its folder tells what came of it"))
    _add_report(commands.add_parser("report", help="the summary of a run, from its folder"))
    _add_suite(commands.add_parser("suite", help="a ladder of runs, and a table of them"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--workload", default=DEFAULTS.workload, metavar="|".join(WORKLOADS))
    add(
        "--nemesis",
        default="",
        metavar="KIND,...",
        help=f"all, or some of {', '.join(KINDS)}; none: a quiet run",
    )
    add(
        "--time-limit", type=float, default=DEFAULTS.time_limit, metavar="SECONDS", help="of faults"
    )
    add("--seed", type=int, default=None, help="what strikes when (drawn where none is given)")
    add("--nodes", type=int, default=DEFAULTS.nodes, metavar="|".join(map(str, NODES)))
    add(
        "--acks",
        default=",".join(DEFAULTS.acks),
        metavar=",".join(ACKS),
        help="of the topics (%(default)s)",
    )
    add("--processes", type=int, default=DEFAULTS.processes, help="clients (%(default)s)")
    add(
        "--rate",
        type=float,
        default=DEFAULTS.rate,
        help="operations a second, of all of them (%(default)g)",
    )
    add(
        "--pace",
        type=float,
        default=DEFAULTS.pace,
        help="seconds between faults, on the average (%(default)g)",
    )
    add(
        "--whom",
        default="",
        metavar="PART,...",
        help=f"hit nobody else: {', '.join(parts(KINDS))}",
    )
    add(
        "--fault-events",
        "--strokes",  # in commands of older reports
        type=int,
        default=0,
        metavar="COUNT",
        help="so many faults of each kind, one after the other",
    )
    add("--folder", type=Path, default=None, help="where the run is written; must hold none yet")
    parser.set_defaults(act=_run)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.set_defaults(act=_report)


def _add_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--level", type=int, choices=(1, 2, 3), required=True)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the others follow")
    parser.add_argument(
        "--rungs", default="", metavar="NUMBER,...", help="of the ladder; none named: all"
    )
    parser.add_argument("--folder", type=Path, default=Path("jepsen-results"))
    parser.set_defaults(act=_suite)


def settings_of(arguments: argparse.Namespace) -> RunSettings:
    """
    Raises:
        BadSettings, UnknownKind: what was asked for cannot be.
    """
    settings = RunSettings(
        workload=arguments.workload,
        nemesis=check_kinds(_words(arguments.nemesis)),
        time_limit=arguments.time_limit,
        seed=randrange(1_000_000) if arguments.seed is None else arguments.seed,
        nodes=arguments.nodes,
        acks=_words(arguments.acks),
        processes=arguments.processes,
        rate=arguments.rate,
        pace=arguments.pace,
        whom=_words(arguments.whom),
        fault_events=arguments.fault_events,
    )
    settings.check()
    return settings


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _run(arguments: argparse.Namespace) -> str:
    from jepsen_like.run import run  # trio and the SDK: not for --help

    return run(settings_of(arguments), arguments.folder)


def _report(arguments: argparse.Namespace) -> str:
    from jepsen_like.report.folder import RunFolder
    from jepsen_like.run import judge_run

    folder = RunFolder(arguments.folder, judge=partial(judge_run, arguments.folder))
    if not folder.history_path.exists():
        raise BadSettings(f"no run in {arguments.folder}: there is no {folder.history_path.name}")
    sys.stdout.write(folder.summary())
    return folder.outcome()


def _suite(arguments: argparse.Namespace) -> str:
    from jepsen_like.suite import chosen, climb

    rungs = chosen(arguments.level, _words(arguments.rungs))
    return climb(arguments.level, rungs=rungs, first_seed=arguments.seed, folder=arguments.folder)
