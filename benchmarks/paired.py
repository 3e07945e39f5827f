"""One commit beside another: the same loads on the same machine, in turns.

    python -m benchmarks.paired BEFORE [--rounds 5] [--scale 1] [--section compared] [--root DIR]

Checks out BEFORE into a folder that is gone afterwards, puts the benchmarks of this checkout there,
and runs `python -m benchmarks.brokers SECTION` in both, one after the other, round by round. Which
is first changes with each round. Prints for each load and figure the medians of both, and the ratio
after / before of each round: its median, least and most. A machine whose speed drifts changes both
runs of a round alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HERE = Path(__file__).parents[1]
# What tells one load from another; everything else in a row is a figure.
NAMES = ("load", "durability", "partitions", "acks", "record_bytes", "batch_records", "in_flight")
# Figures that differ from run to run by nature, or are the benchmark's own.
LEFT_OUT = ("requests", "max_ms", "late_p50_ms", "late_p99_ms", "waited_ms", "p99_9_ms")

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="a commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--section", default="compared")
    parser.add_argument("--root", type=Path, default=Path())
    given = parser.parse_args()
    root, command = given.root.resolve(), ["benchmarks.brokers", given.section]
    command += ["--scale", str(given.scale), "--root", str(root)]
    with checked_out(given.before) as tree:
        trees, runs = {"before": tree, "after": HERE}, dict[str, list[list[Row]]]()
        for number in range(given.rounds):
            for name in sorted(trees, reverse=number % 2 == 0):
                runs.setdefault(name, []).append(rows_of(trees[name], given.section, command))
    report = Report(f"paired-{given.section}")
    for key, figures in compared(runs["before"], runs["after"]).items():
        for figure, pairs in figures.items():
            report.row(**dict(key), figure=figure, **ratios(pairs))
    report.row(before=commit_of(tree_ish=given.before), after=commit_of(tree_ish="HEAD"))
    report.finish()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            shutil.rmtree(tree / "benchmarks")
            shutil.copytree(HERE / "benchmarks", tree / "benchmarks")
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_of(*, tree_ish: str) -> str:
    return git("rev-parse", "--short", tree_ish)


def rows_of(tree: Path, section: str, command: Sequence[str]) -> list[Row]:
    """Of one run in `tree`, whose own packages come before any that are installed."""
    subprocess.run([sys.executable, "-m", *command], cwd=tree, check=True, stdout=sys.stderr)
    written = tree / "benchmarks" / "results" / f"broker-{section}.json"
    rows: list[Row] = json.loads(written.read_text())["rows"]
    return rows


def compared(
    before: Sequence[Sequence[Row]], after: Sequence[Sequence[Row]]
) -> Mapping[tuple[Any, ...], dict[str, list[tuple[float, float]]]]:
    """Of each load, by what names it, the pairs of each figure: one pair for each round."""
    found: dict[tuple[Any, ...], dict[str, list[tuple[float, float]]]] = {}
    for old_rows, new_rows in zip(before, after, strict=True):
        for old, new in zip(old_rows, new_rows, strict=True):
            key = tuple((name, new[name]) for name in NAMES if name in new)
            figures = found.setdefault(key, {})
            for name, value in new.items():
                is_figure = name not in (*NAMES, *LEFT_OUT) and isinstance(value, int | float)
                if is_figure and old.get(name):
                    figures.setdefault(name, []).append((old[name], value))
    return found


def ratios(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    each = [new / old for old, new in pairs]
    return {
        "before": round(median([old for old, _ in pairs]), 3),
        "after": round(median([new for _, new in pairs]), 3),
        "ratio": round(median(each), 3),
        "least": round(min(each), 3),
        "most": round(max(each), 3),
    }


if __name__ == "__main__":
    main()
