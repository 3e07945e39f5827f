"""How long it takes from a clone to the first record, with what pip has to install on the way.

    python -m benchmarks.first_record [--rounds 3]

Each round clones the commit that is checked out, installs `[broker]` into a new environment, starts
three brokers and sends a record through them, as README says. pip takes packages from its cache or
the index, so the first round of a machine may be one of a download. The aim is 60 s in all, 0.2 s
for `--help` and 0.4 s for a command that asks the cluster.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Report

ROOT = Path(__file__).parents[1]


class Stopwatch:
    """Runs commands in one folder, each of them a row of the report."""

    def __init__(self, report: Report, folder: Path, number: int) -> None:
        self._report, self._folder, self._number = report, folder, number

    def run(self, step: str, *command: str | Path, given: str = "") -> str:
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=self._folder, input=given, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{step}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        self.tell(step, time.monotonic() - began)
        return done.stdout

    def tell(self, step: str, seconds: float) -> None:
        self._report.row(round=self._number, step=step, seconds=round(seconds, 2))


def measure(watch: Stopwatch, folder: Path) -> None:
    clone, environment = folder / "raftmq", folder / "environment"
    pip, raftmq = environment / "bin/pip", environment / "bin/raftmq"
    began = time.monotonic()
    watch.run("clone", "git", "clone", "--quiet", ROOT, clone)
    watch.run("environment", sys.executable, "-m", "venv", environment)
    watch.run("pip install", pip, "install", "--quiet", f"{clone}[broker]")
    watch.run("three brokers", raftmq, "dev", "--port", "0", "--detach")
    try:
        status = watch.run("raftmq dev status", raftmq, "dev", "status", "-o", "json")
        bootstrap = json.loads(status.splitlines()[-1])["bootstrap"]
        asked = (raftmq, "-b", bootstrap)
        watch.run("raftmq topic create", *asked, "topic", "create", "first")
        watch.run("raftmq produce", *asked, "produce", "first", given="hello\n")
        found = watch.run("raftmq consume", *asked, "consume", "first", "-o", "earliest", "-n", "1")
        assert found == "hello\n", found
        watch.tell("clone to first record", time.monotonic() - began)
        watch.run("raftmq topic list", *asked, "topic", "list")
        watch.run("raftmq --help", raftmq, "--help")
    finally:
        watch.run("raftmq dev stop", raftmq, "dev", "stop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    report = Report("first-record")
    for number in range(1, parser.parse_args().rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            measure(Stopwatch(report, Path(folder), number), Path(folder))
    report.finish()


if __name__ == "__main__":
    main()
