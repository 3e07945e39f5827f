"""The harness' side of the pipes, with a switch that is lines in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from jepsen_like.network.commands import Counts, encode_line
from jepsen_like.network.links import NetworkError, SwitchLinks

if TYPE_CHECKING:
    from collections.abc import Iterator


class Switch:
    """Answers what it is told to, whatever it is asked.

    Attributes:
    links: that wait for its answers, but not long.
    """

    def __init__(self, commands: IO[bytes], answers: IO[bytes], answering: IO[bytes]) -> None:
        self._answering = answering
        hosts = ("n1", "n2", "clients")
        self.links = SwitchLinks(hosts, commands=commands, answers=answers, answer_seconds=0.0)

    def answer(self, counts: Counts) -> None:
        self._answering.write(encode_line(counts))
        self._answering.flush()

    def end(self) -> None:
        self._answering.close()


@pytest.fixture
def switch() -> Iterator[Switch]:
    read, write = os.pipe()
    with (
        os.fdopen(read, "rb") as answers,
        os.fdopen(write, "wb") as answering,
        Path(os.devnull).open("wb") as commands,
    ):
        yield Switch(commands, answers, answering)


def test_no_answer(switch: Switch) -> None:
    """The switch hangs: the command fails, and says how long it waited."""
    with pytest.raises(NetworkError, match=r"Heal\(\).* within 0.0 s"):
        switch.links.heal()


def test_late_answer_is_not_taken_for_the_next(switch: Switch) -> None:
    """The answer to a first command comes after all, and then that to the second."""
    with pytest.raises(NetworkError):
        switch.links.cut("n1", "n2")
    switch.answer(Counts(commands=1))
    with pytest.raises(NetworkError):
        switch.links.heal()
    switch.answer(Counts(commands=2))
    switch.answer(Counts(commands=3, cut=5))
    assert switch.links.counts().cut == 5


def test_end_of_the_switch(switch: Switch) -> None:
    """It obeys one command and ends: that one holds, the next fails."""
    switch.answer(Counts(commands=1))
    switch.end()
    switch.links.cut("n1", "clients")
    with pytest.raises(NetworkError, match="it has ended"):
        switch.links.cut("clients", "n1")
