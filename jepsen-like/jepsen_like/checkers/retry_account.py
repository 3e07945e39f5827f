"""What groups with retries did: attempts to handle records, dead letters, results, what was left.

Owns the pairing of attempts with how they ended, by number: a member has several under way. A
record is known by where it stood first, as values may stand twice. Judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.history.event import Type
from jepsen_like.history.record_fate import RecordFate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jepsen_like.checkers.columns import KeyAccount, Value
    from jepsen_like.history.event import Event

DONE = "done"
# The error of a dead letter that was set aside as it had ended its process; and after how many
# deaths at the least.
DIED, DEATHS_MIN = "its process died ", 3


class Place(NamedTuple):
    """Where a record stood first."""

    key: str
    offset: int

    def __str__(self) -> str:
        return f"key {self.key!r}, offset {self.offset}"


@dataclass(eq=False, slots=True)
class Attempt:
    """One attempt to handle a record.

    Attributes:
        number: the first one is 1.
        is_back: it was read from the topic of retries.
        stamp: when it was due there, and delivered by its leader's clock, as the record says.
        kind: OK: it ended so; FAIL: it certainly has no effect; INFO: unknown.
        end: "done", "moved" or "letter"; empty: it never ended.
    """

    member: str
    place: Place
    value: Value
    fate: RecordFate
    number: int
    is_back: bool
    invoked: int
    time: float
    stamp: tuple[float, float] | None = None
    kind: Type = Type.INFO
    end: str = ""
    completed: int | None = None

    @property
    def is_done(self) -> bool:
        return self.kind is Type.OK and self.end == DONE

    def __str__(self) -> str:
        how = f"{self.kind} {self.end!r} in event {self.completed}" if self.end else "not ended"
        return f"attempt {self.number} by {self.member} in event {self.invoked}, {how}"


class Letter(NamedTuple):
    """A dead letter. `at`: its offset; `attempts`: as it says, None: it does not."""

    at: int
    place: Place
    value: Value
    fate: RecordFate
    attempts: int | None
    error: str

    @property
    def is_for_deaths(self) -> bool:
        return self.error.startswith(DIED)

    @property
    def deaths(self) -> int:
        """As it says; 0: it is not for these, or says no number."""
        count, _, _ = self.error.removeprefix(DIED).partition(" ")
        return int(count) if self.is_for_deaths and count.isdigit() else 0

    def __str__(self) -> str:
        told = f"{self.attempts} attempts, {self.error!r}"
        return f"{self.place}, value {self.value!r} ({self.fate}): dead letter {self.at}, {told}"


class Result(NamedTuple):
    """Of the group that is exactly once. `at`: its key and offset."""

    at: tuple[str, int]
    place: Place
    value: Value
    fate: RecordFate

    def __str__(self) -> str:
        return f"{self.place}, value {self.value!r} ({self.fate}): result at {self.at}"


class Left(NamedTuple):
    """In the end: by key what the group has not done, and what waits in its topic of retries."""

    lags: Sequence[tuple[str, int | None, int | None]]
    pending: Sequence[int]

    @property
    def is_nothing(self) -> bool:
        return not self.lags and not self.pending


@dataclass(eq=False)
class RetryGroup:
    """Attributes:
    attempts_max: of its policy.
    pauses: by attempt, from the first one on: the shortest that may follow it.
    can_reject: what is to be rejected is set aside at its first attempt; else it fails always.
    attempts: by record, in the order in which they began.
    deaths: times at which a session of a member may have ended without its leaving.
    letters, results: None: nobody has read them.
    left: None: nobody has answered.
    """

    name: str
    keys: tuple[str, ...]
    attempts_max: int
    pauses: tuple[float, ...]
    is_exactly_once: bool
    can_reject: bool
    attempts: dict[Place, list[Attempt]] = field(default_factory=dict)
    deaths: list[float] = field(default_factory=list)
    crash_count: int = 0
    letters: list[Letter] | None = None
    results: list[Result] | None = None
    left: Left | None = None

    @property
    def is_told(self) -> bool:
        """All of its end is known."""
        has_results = self.results is not None or not self.is_exactly_once
        return self.letters is not None and has_results and self.left is not None

    def all_attempts(self) -> Iterator[Attempt]:
        for attempts in self.attempts.values():
            yield from attempts

    def done(self) -> set[Place]:
        """By a result, if it has results; else by what members say."""
        if self.is_exactly_once:
            return {one.place for one in self.results or ()}
        return {one.place for one in self.all_attempts() if one.is_done}

    def letter_attempts(self, fate: RecordFate) -> int:
        """That a dead letter tells of a record that is never good."""
        is_at_once = fate is RecordFate.REJECTED and self.can_reject
        return 1 if is_at_once else self.attempts_max

    def history_of(self, place: Place) -> str:
        attempts = self.attempts.get(place, ())
        return "; ".join(map(str, attempts)) or "never handed out"


class RetryAccount:
    """Attributes:
    keys: of the account.
    groups: by name.
    """

    def __init__(self, keys: Mapping[str, KeyAccount]) -> None:
        self.keys = keys
        self.groups: dict[str, RetryGroup] = {}
        self._of_member: dict[str, RetryGroup] = {}
        self._open: dict[int, Attempt] = {}  # by number
        self._takes: dict[str, Callable[[Event], None]] = {
            "retry-group": self._group,
            "worker": self._worker,
            "handle": self._handle,
            "holds": self._holds,
            "crash": self._die,
            "mute": self._die,
            "gone": self._die,
            "left": self._left,
            "letters": self._letters,
            "results": self._results,
        }

    def take(self, event: Event) -> None:
        """Events that are not about these groups are skipped."""
        if event.f in self._takes:
            self._takes[event.f](event)

    def value_at(self, place: Place) -> Value | None:
        """As clients know it; None: nobody has seen anything there."""
        key = self.keys.get(place.key)
        return None if key is None else key.order.observed.get(place.offset)

    def source(self, group: RetryGroup) -> Iterator[tuple[Place, Value]]:
        """All that the group is to do: what was acknowledged, or read."""
        for name in group.keys:
            if name in self.keys:
                for offset, value in self.keys[name].order.observed.items():
                    yield Place(name, offset), value

    # -- members ---------------------------------------------------------------------------

    def _group(self, event: Event) -> None:
        told = event.value
        self.groups[told["group"]] = RetryGroup(
            told["group"],
            tuple(told["keys"]),
            told["attempts"],
            tuple(told["pauses"]),
            told["is_exactly_once"],
            told["can_reject"],
        )

    def _worker(self, event: Event) -> None:
        self._of_member[str(event.process)] = self.groups[event.value["group"]]

    def _handle(self, event: Event) -> None:
        told = event.value
        if event.type is Type.INVOKE:
            self._begin(event, told)
            return
        attempt = self._open.pop(told["number"])
        attempt.kind, attempt.end, attempt.completed = event.type, told["end"], event.index

    def _begin(self, event: Event, told: dict[str, Any]) -> None:
        member, place = str(event.process), Place(told["key"], told["offset"])
        attempt = self._open[told["number"]] = Attempt(
            member,
            place,
            told["value"],
            RecordFate(told["fate"]),
            told["attempt"],
            told["is_back"],
            event.index,
            event.time,
            (told["due"], told["at"]) if "due" in told else None,
        )
        self._of_member[member].attempts.setdefault(place, []).append(attempt)

    def _holds(self, event: Event) -> None:
        """What is lost was taken away when the session had ended."""
        if event.value.get("lost"):
            self._die(event)

    def _die(self, event: Event) -> None:
        """Also who has gone in order, as nobody may have heard of it."""
        group = self._of_member.get(str(event.process))
        if group is not None:
            group.deaths.append(event.time)
            group.crash_count += event.f == "crash"

    # -- the end ---------------------------------------------------------------------------

    def _left(self, event: Event) -> None:
        if event.type is Type.OK:
            told = event.value
            lags = [(key, committed, end) for key, committed, end in told["lags"]]
            self.groups[told["group"]].left = Left(lags, told["pending"])

    def _letters(self, event: Event) -> None:
        if event.type is Type.OK:
            self.groups[event.value["group"]].letters = [
                Letter(at, Place(key, offset), value, RecordFate(fate), attempts, error)
                for at, key, offset, value, fate, attempts, error in event.value["rows"]
            ]

    def _results(self, event: Event) -> None:
        if event.type is Type.OK:
            self.groups[event.value["group"]].results = [
                Result((at[0], at[1]), Place(key, offset), value, RecordFate(fate))
                for at, key, offset, value, fate in event.value["rows"]
            ]
