"""Where reading begins or ends, as a program asks for it before any broker was asked. Pure.

Owns the four kinds of it, and what each comes to once brokers have told their offsets. As in
Spark's source for Kafka a position that names partitions names exactly those that are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from raftmq.errors import InvalidConfig
from spark_io.offsets import Key, Offsets, flat, name_of, nested

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

EARLIEST, LATEST = -2, -1  # in place of an offset
NAMES_SHOWN_MAX = 5

WhenMissing: TypeAlias = Literal["error", "latest"]


@dataclass(frozen=True)
class Earliest:
    """The oldest record of each partition."""


@dataclass(frozen=True)
class Latest:
    """After the newest committed record of each partition."""


@dataclass(frozen=True)
class At:
    """Attributes:
    offsets: of each partition; EARLIEST and LATEST stand for the ends of its log.
    option: which one said so.
    """

    offsets: Offsets
    option: str = field(default="startingOffsets", compare=False)


@dataclass(frozen=True)
class Since:
    """The first record at or after a time.

    Attributes:
        timestamps: milliseconds since 1970-01-01 UTC, of each partition or one for all.
        when_missing: where all records are older: an error, or the end of the log.
        option: which one said so.
    """

    timestamps: int | Offsets
    when_missing: WhenMissing = "error"
    option: str = field(default="startingTimestamp", compare=False)


Position: TypeAlias = Earliest | Latest | At | Since


class Ask(Protocol):
    """Who knows offsets. Answers are of exactly the partitions that were asked for."""

    def earliest(self, keys: Collection[Key], /) -> dict[Key, int]: ...

    def latest(self, keys: Collection[Key], /) -> dict[Key, int]: ...

    def since(self, moments: Mapping[Key, int], /) -> dict[Key, int | None]:
        """None: all records are older."""


def resolve(position: Position, keys: Collection[Key], ask: Ask) -> Offsets:
    """The offsets of `keys`. Each question is asked once at most, and never about nothing.

    Raises:
        InvalidConfig: other partitions are named than `keys`; or of some all records are older,
            where that is an error.
    """
    match position:
        case Earliest():
            marked = dict.fromkeys(keys, EARLIEST)
        case Latest():
            marked = dict.fromkeys(keys, LATEST)
        case At():
            marked = flat(position.offsets)
            _check_names(position.option, marked, keys, ", with -2 for earliest and -1 for latest")
        case Since():
            marked = _since(position, keys, ask)
    return nested(_without_marks(marked, ask))


def contradictions(start: Position, end: Position) -> list[str]:
    """What no broker has to be asked for: a start after the end."""
    match start, end:
        case At(), At():
            begins, ends, names = flat(start.offsets), flat(end.offsets), (start.option, end.option)
        case Since(timestamps=int(begin)), Since(timestamps=int(until)):
            if begin <= until:
                return []
            return [f"{start.option} = {begin} is after {end.option} = {until}: exchange them"]
        case Since(timestamps=dict() as since), Since(timestamps=dict() as until_each):
            begins, ends, names = flat(since), flat(until_each), (start.option, end.option)
        case _:
            return []
    if begins.keys() != ends.keys():
        others = shown(begins.keys() ^ ends.keys())
        return [f"{names[0]} and {names[1]} name different partitions ({others}): name the same"]
    late = [key for key, begin in begins.items() if 0 <= ends[key] < begin]
    return [f"{shown(late)}: {names[0]} is after {names[1]}: exchange them"] if late else []


def shown(keys: Iterable[Key]) -> str:
    """Names for a sentence."""
    names = [name_of(key) for key in sorted(keys)]
    rest = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _since(position: Since, keys: Collection[Key], ask: Ask) -> dict[Key, int]:
    given = position.timestamps
    moments = dict.fromkeys(keys, given) if isinstance(given, int) else flat(given)
    _check_names(position.option, moments, keys, "")
    found = ask.since(moments) if moments else {}
    if position.when_missing == "error":
        _check_found(position.option, {key: moments[key] for key in moments if found[key] is None})
    return {key: LATEST if offset is None else offset for key, offset in found.items()}


def _without_marks(marked: Mapping[Key, int], ask: Ask) -> dict[Key, int]:
    return {
        **marked,
        **_asked(ask.earliest, [key for key, offset in marked.items() if offset == EARLIEST]),
        **_asked(ask.latest, [key for key, offset in marked.items() if offset == LATEST]),
    }


def _asked(
    question: Callable[[Collection[Key]], dict[Key, int]], keys: Collection[Key]
) -> dict[Key, int]:
    found = question(keys) if keys else {}
    assert found.keys() == set(keys), "an answer about other partitions"
    return found


def _check_names(option: str, named: Collection[Key], keys: Collection[Key], hint: str) -> None:
    problems = []
    if missing := set(keys) - set(named):
        problems.append(f"{option} does not name {shown(missing)}: name all that are read{hint}")
    if others := set(named) - set(keys):
        problems.append(f"{option} names {shown(others)}: leave out what is not read, or read it")
    if problems:
        raise InvalidConfig(problems)


def _check_found(option: str, missing: Mapping[Key, int]) -> None:
    if missing:
        raise InvalidConfig(
            [
                f"{option}: all records of {shown(missing)} are older than {min(missing.values())};"
                " take an earlier time, or startingOffsetsByTimestampStrategy = latest to begin"
                " at the end"
            ]
        )
