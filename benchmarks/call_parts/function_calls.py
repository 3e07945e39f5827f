"""Counts the calls of functions, Python's and C's, in the thread that makes the counter: cProfile.

A coroutine that goes on after it has waited is called once more. Also owns what is done with
counts: the share of one record, without what goes on anyhow.
"""

from __future__ import annotations

import json
import time
from cProfile import Profile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import trio

import raftmq

if TYPE_CHECKING:
    from types import CodeType

# Files below these are named from there on.
HOMES = sorted(
    {str(Path(package.__file__).parents[1]) for package in (raftmq, trio, json)},
    key=len,
    reverse=True,
)

PerRecord: TypeAlias = dict[str, float]  # calls, by name


class Counted(NamedTuple):
    """What one process called within `seconds`, by name."""

    seconds: float
    calls: dict[str, int]

    def per_record(self, idle: Counted, records: int) -> PerRecord:
        """The calls that `idle` has not in as much time, of each of so many records."""
        share = self.seconds / idle.seconds
        return {
            name: (self.calls.get(name, 0) - idle.calls.get(name, 0) * share) / records
            for name in self.calls | idle.calls
        }


class CallCounter:
    def begin(self) -> None:
        self._profile, self._began = Profile(), time.perf_counter()
        self._profile.enable()

    def end(self) -> Counted:
        self._profile.disable()
        seconds = time.perf_counter() - self._began
        counts: dict[str, int] = {}
        for entry in self._profile.getstats():
            name = name_of(entry.code)
            counts[name] = counts.get(name, 0) + entry.callcount
        return Counted(seconds, counts)


def name_of(code: CodeType | str) -> str:
    """`file:line function`; C functions, which have no file, as cProfile calls them: `<...>`."""
    if isinstance(code, str):
        return code
    home = next((home for home in HOMES if code.co_filename.startswith(home)), "")
    file = code.co_filename.removeprefix(home).removeprefix("/")
    return f"{file}:{code.co_firstlineno} {code.co_qualname}"
