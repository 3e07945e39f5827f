"""The verdict on a group: what its members wrote down, against what was promised to them. Pure.

Owns the promises: each acknowledged record comes; each comes once, unless something has happened to
whoever had it before; nobody has what another one has; commits never go back, and count for whoever
reads on. What a stop of a process may excuse is what was handed out in the step that it has struck.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tests.cluster.group_ownership import Ending, lives_of
from tests.cluster.group_words import BEFORE, MANUAL, Committed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.cluster.group_ownership import Ownership, Struck
    from tests.cluster.group_words import AnyWord, Handed

_SHOWN = 5
Place: TypeAlias = tuple[int, int]  # partition and offset


class Span(NamedTuple):
    began_at: float
    ended_at: float


class Observation(NamedTuple):
    """What the group had committed, by partition, as its coordinator said."""

    asked_at: float
    heard_at: float
    offsets: Mapping[int, int]


class Evidence(NamedTuple):
    """Attributes:
    acknowledged: the number of the record at each place; a number stands for one record.
    denied: numbers of records that certainly were not sent.
    key_count: a record's key is the rest of its number by that.
    logs: of each member, by its number.
    commits: how each of them commits.
    outages: when some broker was down, or had just come back.
    """

    acknowledged: Mapping[Place, int]
    denied: frozenset[int]
    key_count: int
    logs: Mapping[int, Sequence[AnyWord]]
    commits: Mapping[int, str]
    struck: Sequence[Struck]
    outages: Sequence[Span]
    observations: Sequence[Observation]


class Verdict:
    """Attributes:
    findings: what is wrong, a line each; empty if all is well.
    repeats: how many records came again, by the reason.
    never: acknowledged records that nobody got; where commits come first that is no finding.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._is_first = set(evidence.commits.values()) == {BEFORE}
        self.lives = lives_of(evidence.logs, evidence.struck)
        self.owned = sorted(
            (owned for life in self.lives.values() for owned in life.ownerships),
            key=lambda owned: owned.began_at,
        )
        self.findings = [each for life in self.lives.values() for each in life.findings]
        self.repeats: Counter[str] = Counter()
        self.never = 0
        self._by_partition: dict[int, list[Ownership]] = defaultdict(list)
        for owned in self.owned:
            self._by_partition[owned.partition].append(owned)
        for partition in self._by_partition:
            self._judge_overlaps(partition)
            self._judge_commits(partition)
            self._judge_repeats(partition)
        self._judge_stopped()
        self._judge_values()

    @property
    def handed_count(self) -> int:
        return sum(len(handed.numbers) for owned in self.owned for handed in owned.handed)

    def _find(self, what: str, found: Sequence[object] = ("",)) -> None:
        if found:
            shown = "; ".join(str(each) for each in found[:_SHOWN])
            self.findings.append(f"{what}: {len(found)}: {shown}" if found != ("",) else what)

    # -- who has what ----------------------------------------------------------------------

    def _judge_overlaps(self, partition: int) -> None:
        """A member that was stopped for longer than its session has it until then."""
        before: Ownership | None = None
        for owned in self._by_partition[partition]:
            if before is not None and owned.began_at < self._ends_at(before):
                end = self._ends_at(before)
                self._find(f"{owned}: and {before} has it until {end:.3f}, {before.ending}")
            if before is None or self._ends_at(owned) > self._ends_at(before):
                before = owned

    def _ends_at(self, owned: Ownership) -> float:
        return min([owned.ended_at, *(stop.began_at for stop in self._stops_of(owned))])

    def _stops_of(self, owned: Ownership) -> list[Struck]:
        """In the midst of it."""
        return [
            stop
            for stop in self.lives[owned.life].stops
            if stop.ended_at > owned.began_at and stop.began_at < owned.ended_at
        ]

    def _judge_stopped(self) -> None:
        """Who goes on after that gets nothing of what it had."""
        for owned in self.owned:
            for stop in self._stops_of(owned):
                late = [handed for handed in owned.handed if handed.step_at >= stop.ended_at]
                since = f"went on at {stop.ended_at:.3f}, and was handed out what it had before"
                self._find(f"{owned}: {since}", late)

    # -- what is committed -----------------------------------------------------------------

    def _judge_commits(self, partition: int) -> None:
        seen = [
            (one.asked_at, one.heard_at, one.offsets[partition])
            for one in self._evidence.observations
            if partition in one.offsets
        ]
        if self._is_first:
            self._judge_committed_first(partition, seen)
        else:
            back = [f"{two[2]} after {one[2]}" for one, two in pairwise(seen) if two[2] < one[2]]
            self._find(f"partition {partition}: commits go back", back)
            self._judge_committed_last(partition, seen)
            self._judge_beginnings(partition, seen)

    def _judge_committed_first(
        self, partition: int, seen: Sequence[tuple[float, float, int]]
    ) -> None:
        """Whatever was handed out before anybody asked is committed."""
        handed, at, end = self._handed(partition), 0, 0
        for asked_at, _, offset in seen:
            while at < len(handed) and handed[at].at < asked_at:
                end = max(end, handed[at].end_offset)
                at += 1
            if offset < end:
                self._find(f"partition {partition}: {end - 1} handed out, and {offset} committed")

    def _judge_committed_last(
        self, partition: int, seen: Sequence[tuple[float, float, int]]
    ) -> None:
        """Whatever is committed was handed out before that was heard."""
        handed, at, end = self._handed(partition), 0, 0
        for _, heard_at, offset in seen:
            while at < len(handed) and handed[at].at < heard_at:
                if handed[at].base_offset <= end:
                    end = max(end, handed[at].end_offset)
                at += 1
            if offset > end:
                self._find(f"partition {partition}: {offset} committed, and {end} not handed out")

    def _judge_beginnings(self, partition: int, seen: Sequence[tuple[float, float, int]]) -> None:
        """Whoever reads on begins where the group has come, as far as anybody was told before."""
        commits = sorted(
            [(heard_at, offset) for _, heard_at, offset in seen] + self._said(partition)
        )
        at, end = 0, 0
        for owned in self._by_partition[partition]:
            while at < len(commits) and commits[at][0] < owned.began_at:
                end = max(end, commits[at][1])
                at += 1
            if owned.handed and owned.handed[0].base_offset < end:
                self._find(f"{owned}: begins at {owned.handed[0].base_offset}, {end} is committed")

    def _said(self, partition: int) -> list[tuple[float, int]]:
        """Commits by hand that were answered."""
        return [
            (word.at, word.offset)
            for log in self._evidence.logs.values()
            for word in log
            if isinstance(word, Committed) and word.partition == partition
        ]

    def _handed(self, partition: int) -> list[Handed]:
        found = [each for owned in self._by_partition[partition] for each in owned.handed]
        return sorted(found, key=lambda handed: handed.at)

    # -- what comes, and how often ---------------------------------------------------------

    def _judge_repeats(self, partition: int) -> None:
        last: dict[int, tuple[float, Ownership]] = {}
        without_reason = []
        for at, offset, owned in sorted(_each(self._by_partition[partition]), key=_when):
            if offset in last:
                reason = self._reason(*last[offset], offset, at)
                self.repeats[reason or "none"] += 1
                if not reason or self._is_first:
                    without_reason.append(f"{offset} of {owned}, before of {last[offset][1]}")
            last[offset] = at, owned
        self._find(f"partition {partition}: came twice", without_reason)

    def _reason(self, first_at: float, owned: Ownership, offset: int, again_at: float) -> str:
        """What has happened to whoever got it first, before it came again; empty: nothing."""
        for stop in self._stops_of(owned):
            if stop.began_at < again_at and stop.ended_at > first_at:
                return "its member was stopped"
        if owned.ended_at > again_at:
            return ""
        if owned.ending in (Ending.KILLED, Ending.LOST):
            return f"its member was {owned.ending}" if owned.ending is Ending.KILLED else "lost"
        if self._evidence.commits[owned.life] == MANUAL:
            return "given up uncommitted" if owned.committed <= offset else ""
        is_troubled = any(
            span.began_at < owned.ended_at and first_at < span.ended_at
            for span in self._evidence.outages
        )
        return "given up while a broker was down" if is_troubled else ""

    def _judge_values(self) -> None:
        found, evidence = dict[Place, int](), self._evidence
        for owned in self.owned:
            for place, number in _values(owned):
                before = found.setdefault(place, number)
                if before != number:
                    self._find(f"{owned}: {place} reads {number}, and was {before}")
        wrong = [
            f"{place} was {number}, and reads {found[place]}"
            for place, number in evidence.acknowledged.items()
            if found.get(place, number) != number
        ]
        self._find("acknowledged otherwise", wrong)
        missing = sorted(evidence.acknowledged.keys() - found.keys())
        self.never = len(missing)
        self._find("acknowledged, and handed out to nobody", [] if self._is_first else missing)
        self._judge_order(found)

    def _judge_order(self, found: Mapping[Place, int]) -> None:
        """The numbers of a key rise, so that none stands in the log twice."""
        last: dict[int, int] = {}
        count = self._evidence.key_count
        wrong = []
        for place, number in sorted(found.items()):
            if number <= last.get(number % count, -1):
                wrong.append(f"{place} is {number} after {last[number % count]}")
            last[number % count] = number
        self._find("not in the order in which they were sent", wrong)
        self._find("there, though denied", sorted(self._evidence.denied & set(found.values())))


def _each(ownerships: Sequence[Ownership]) -> Iterator[tuple[float, int, Ownership]]:
    for owned in ownerships:
        for handed in owned.handed:
            for offset in range(handed.base_offset, handed.end_offset):
                yield handed.at, offset, owned


def _when(each: tuple[float, int, Ownership]) -> tuple[float, int]:
    return each[:2]


def _values(owned: Ownership) -> Iterator[tuple[Place, int]]:
    for handed in owned.handed:
        for offset, number in enumerate(handed.numbers, handed.base_offset):
            yield (owned.partition, offset), number
