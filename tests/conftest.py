"""What holds for every test: replayable examples, and no skip that nobody notices.

Owns the hypothesis profiles, the order, what is too slow for the fast gate (tests/durations.py),
and the rule that CI skips nothing. Capabilities (root, loop mounts, strace) are probed by the tests
that need them; docs/TESTING.md says how. Clocks come from pytest-trio: a test that waits takes
`autojump_clock`.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.durations import Refusing, mark_slow

if TYPE_CHECKING:
    from collections.abc import Generator

# gate: the same examples at every run, so that a red test is red for everybody; check: the first
# few of them, for `make check`.
# soak: other examples at every run; a failure prints the line that replays it.
settings.register_profile("gate", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("soak", deadline=None, max_examples=20_000, print_blob=True)
settings.register_profile("check", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("gate")

# Whoever is started in the background by a shell ignores Ctrl-C, and so do the processes that it
# starts. Those of the tests shall be like those of people.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refuse-slow", action="store_true", help="a slow test without a name is red")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.refuse_slow:
        config.pluginmanager.register(Refusing())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: no collection of garbage shall walk them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark last: it leaves a signal handler, threads and variables in the process."""
    mark_slow(items)
    for item in items:
        if item.get_closest_marker("soak") is not None:
            item.add_marker(pytest.mark.timeout(0))  # hours
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse_skip_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _refuse_skip_in_ci(report)
    return report


def _refuse_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """A machine that cannot run a test is a hole in the gate: CI must be red, not green."""
    if os.environ.get("CI") != "true":
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"skipped in CI, where everything must run: {reason}"
