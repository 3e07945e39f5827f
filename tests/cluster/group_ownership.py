"""What members had of a topic, from when to when, and what each got meanwhile. Pure.

Owns what one member's log says by itself: an ownership begins where it was told of a partition,
and ends where it was told that it is gone, or where somebody ended its process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from tests.cluster.group_words import (
    Assigned,
    Committed,
    Ended,
    Handed,
    Lost,
    Problem,
    Refused,
    Revoked,
    Scattered,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.cluster.group_words import AnyWord


class Blow(StrEnum):
    KILLED = "killed"
    STOPPED = "stopped"  # SIGSTOP, and later SIGCONT
    LEFT = "left"


class Struck(NamedTuple):
    """What was done to a member.

    Attributes:
        began_at: right before the signal.
        ended_at: killed or told to leave: it is gone. Stopped: right before it went on.
    """

    life: int
    blow: Blow
    began_at: float
    ended_at: float


class Ending(StrEnum):
    REVOKED = "revoked"
    LOST = "lost"
    KILLED = "killed"
    LEFT = "left"  # the block ended, and nobody was told
    NONE = "none"


@dataclass
class Ownership:
    """Attributes:
    handed: what the member got of the partition, in order.
    committed: the end of what it has committed by hand.
    """

    life: int
    partition: int
    began_at: float
    ended_at: float = inf
    ending: Ending = Ending.NONE
    handed: list[Handed] = field(default_factory=list)
    committed: int = 0

    def __str__(self) -> str:
        return f"member {self.life}, partition {self.partition} from {self.began_at:.3f}"

    def end(self, ending: Ending, at: float) -> None:
        assert self.ending is Ending.NONE, "ended twice"
        self.ending, self.ended_at = ending, at


class Life:
    """Attributes:
    ownerships: in the order in which they began.
    stops: of its process.
    findings: what its log alone says is wrong.
    problems: how many errors it went on after.
    refused: how many commits by hand were not taken.
    """

    def __init__(
        self, number: int, words: Sequence[AnyWord], struck: Sequence[Struck] = ()
    ) -> None:
        self.number = number
        self.ownerships: list[Ownership] = []
        self.stops = [one for one in struck if one.blow is Blow.STOPPED]
        self.findings: list[str] = []
        self.problems = self.refused = 0
        self._open: dict[int, Ownership] = {}
        for word in words:
            self._read(word)
        for one in struck:
            if one.blow is Blow.KILLED:
                self._end_all(Ending.KILLED, one.began_at)

    def _read(self, word: AnyWord) -> None:
        """What it was told of its partitions, and what it got of them."""
        match word:
            case Assigned():
                for partition in word.partitions:
                    self._assign(partition, word.at)
            case Revoked():
                self._end(word.partitions, Ending.REVOKED, word.at)
            case Lost():
                self._end(word.partitions, Ending.LOST, word.at)
            case Handed():
                self._hand(word)
            case Committed():
                self._commit(word)
            case Ended():
                self._end_all(Ending.LEFT, word.at)
            case _:
                self._look_at(word)

    def _look_at(self, word: AnyWord) -> None:
        match word:
            case Scattered():
                self._find(f"partition {word.partition} with gaps: {word.offsets}")
            case Problem():
                self.problems += 1
                if not word.is_passing:
                    self._find(word.error)
            case Refused():
                self.refused += 1

    def _assign(self, partition: int, at: float) -> None:
        if partition in self._open:
            self._find(f"partition {partition} was assigned at {at:.3f} to who has it")
            return
        self._open[partition] = owned = Ownership(self.number, partition, at)
        self.ownerships.append(owned)

    def _end(self, partitions: Sequence[int], ending: Ending, at: float) -> None:
        """Of some, nothing may have been told yet: they were to be assigned next."""
        for partition in partitions:
            owned = self._open.pop(partition, None)
            if owned is not None:
                owned.end(ending, at)

    def _end_all(self, ending: Ending, at: float) -> None:
        self._end(list(self._open), ending, at)

    def _hand(self, word: Handed) -> None:
        owned = self._open.get(word.partition)
        what = f"partition {word.partition} at {word.base_offset}, {word.at:.3f}"
        if owned is None:
            self._find(f"{what}: handed out, and not assigned")
            return
        if owned.handed and owned.handed[-1].end_offset != word.base_offset:
            self._find(f"{what}: handed out after {owned.handed[-1].end_offset - 1}")
        owned.handed.append(word)

    def _commit(self, word: Committed) -> None:
        owned = self._open.get(word.partition)
        if owned is not None:
            owned.committed = max(owned.committed, word.offset)

    def _find(self, what: str) -> None:
        self.findings.append(f"member {self.number}: {what}")


def lives_of(logs: Mapping[int, Sequence[AnyWord]], struck: Sequence[Struck]) -> dict[int, Life]:
    """By number."""
    return {
        number: Life(number, words, [one for one in struck if one.life == number])
        for number, words in logs.items()
    }
