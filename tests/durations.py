"""Which tests are slow: measured, written down, and left to `make test`.

`durations.json` names every test of the fast folders that takes 0.07 s of CPU time or more, its
child processes included; tests/conftest.py marks them `slow`. One of each simulated world is kept
in the fast gate all the same, by the marker `gate`. A test that is slow and not named makes
`make check` red: it would cost everybody, at every run. `make test` times nothing.

CPU time, as a test takes about as much of it on a busy machine. `python -m tests.durations`
measures all anew and writes the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import find
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

FILE = Path(__file__).with_name("durations.json")
FOLDERS = ("tests/unit", "tests/property", "tests/simulation", "tests/jepsen_like")
LEFT_OUT = "not cluster and not powercut and not soak and not teeth"
SLOW_SECONDS = 0.07
# So much more than what counts as slow makes the gate red: machines differ, on a busy one
# two processes on one core slow each other, and the first test of a module pays for its import.
REFUSED_SECONDS = 2.0


def known() -> dict[str, float]:
    """By test id, the seconds of those that are slow."""
    return dict(json.loads(FILE.read_text("utf-8")))


def mark_slow(items: Iterable[pytest.Item]) -> None:
    slow = known()
    for item in items:
        if item.nodeid in slow and item.get_closest_marker("gate") is None:
            item.add_marker("slow")


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Measuring:
    """A plugin: what each test takes, its fixtures included."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_collection_finish(self) -> None:
        # In a fresh checkout hypothesis computes its tables of Unicode for the first text that it
        # makes, over a second, which is not the cost of the test that comes first.
        find(st.text(), lambda _: True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = cpu_seconds()
        result = yield
        self.seconds[item.nodeid] = cpu_seconds() - before
        return result

    def over(self, seconds: float) -> dict[str, float]:
        return {name: found for name, found in self.seconds.items() if found >= seconds}


class Refusing(Measuring):
    """Makes a run red that leaves out what is slow, and met something slow that has no name."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unknown() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, seconds in self._unknown().items():
            terminalreporter.line(
                f"SLOW {name}: {seconds:.1f} s of CPU time; make it quicker, or name it:"
                " python -m tests.durations",
                red=True,
            )

    def _unknown(self) -> dict[str, float]:
        slow = known()
        return {
            name: seconds
            for name, seconds in self.over(REFUSED_SECONDS).items()
            if name not in slow
        }


def main() -> int:
    measuring = Measuring()
    # Of hypothesis: this module imports it before pytest can rewrite its assertions.
    expected = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments = ["-q", *expected, "--hypothesis-profile=check", "-m", LEFT_OUT, *FOLDERS]
    code = pytest.main(arguments, plugins=[measuring])
    if code == pytest.ExitCode.OK:
        lines = [
            f"  {json.dumps(name)}: {seconds:.2f}"
            for name, seconds in sorted(measuring.over(SLOW_SECONDS).items())
        ]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
