"""Start and end positions of a query (startingOffsets and its like), resolved to offsets. Pure.

Owns the four kinds of positions, and the offsets of each once brokers have answered. As in Spark's
source for Kafka a position that names partitions names exactly those that are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from raftmq.errors import InvalidConfig
from spark_io.offsets import Key, Offsets, flat, name_of, nested, numbers_of_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from spark_io.options.reader import OptionReader


EARLIEST, LATEST = -2, -1  # in place of an offset, as in Spark's source for Kafka
NAMES_SHOWN_MAX = 5  # in a message, which Spark repeats several times

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
    option: the one that it comes from, for messages.
    """

    offsets: Offsets
    option: str = field(default="startingOffsets", compare=False)


@dataclass(frozen=True)
class Since:
    """The first record at or after a time.

    Attributes:
        timestamps: milliseconds since 1970-01-01 UTC, of each partition or one for all.
        when_missing: where all records are older: an error, or the end of the log.
        option: the one that it comes from, for messages.
    """

    timestamps: int | Offsets
    when_missing: WhenMissing = "error"
    option: str = field(default="startingTimestamp", compare=False)


Position: TypeAlias = Earliest | Latest | At | Since


class OffsetLookup(Protocol):
    """Answers where logs begin and end, for exactly the partitions that were asked for."""

    def earliest(self, keys: Collection[Key], /) -> dict[Key, int]: ...

    def latest(self, keys: Collection[Key], /) -> dict[Key, int]: ...

    def since(self, moments: Mapping[Key, int], /) -> dict[Key, int | None]:
        """None: all records are older."""


def resolve(position: Position, keys: Collection[Key], ask: OffsetLookup) -> Offsets:
    """The offsets of `keys`. Each question is asked at most once, and never for no partitions.

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
    """A start after the end, as far as it can be seen without asking a broker."""
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
    # Each names exactly what is read, so they contradict each other.
    if begins.keys() != ends.keys():
        others = shown(begins.keys() ^ ends.keys())
        return [f"{names[0]} and {names[1]} name different partitions ({others}): name the same"]
    # Below 0 are the marks for earliest and latest, which only brokers can compare.
    late = [key for key, begin in begins.items() if 0 <= ends[key] < begin]
    return [f"{shown(late)}: {names[0]} is after {names[1]}: exchange them"] if late else []


def shown(keys: Iterable[Key]) -> str:
    """Names for a sentence, cut where there are many."""
    names = [name_of(key) for key in sorted(keys)]
    rest = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _since(position: Since, keys: Collection[Key], ask: OffsetLookup) -> dict[Key, int]:
    given = position.timestamps
    moments = dict.fromkeys(keys, given) if isinstance(given, int) else flat(given)
    _check_names(position.option, moments, keys, "")
    found = ask.since(moments) if moments else {}
    # As Kafka's default: a time after all records is most often a mistake.
    if position.when_missing == "error":
        _check_found(position.option, {key: moments[key] for key in moments if found[key] is None})
    return {key: LATEST if offset is None else offset for key, offset in found.items()}


def _without_marks(marked: Mapping[Key, int], ask: OffsetLookup) -> dict[Key, int]:
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


# -- Position options -----------------------------------------------------------------------------
# The positions out of the options of a query. Pure.
#
# Kafka's names and meanings; but of options of which Kafka takes one and ignores the others
# only one may be given.


STRATEGY = "startingOffsetsByTimestampStrategy"
_WORDS: dict[str, Position] = {"earliest": Earliest(), "latest": Latest()}
_MARKS = {"earliest": EARLIEST, "latest": LATEST}


def positions(options: OptionReader, *, is_stream: bool) -> tuple[Position, Position]:
    """Start and end. The end of a stream has no meaning."""
    # Kafka's defaults: a batch reads everything, a stream what comes from now on.
    start = _start(options) or (Latest() if is_stream else Earliest())
    if is_stream:
        why = "a stream has no end; read a batch, or take the trigger availableNow"
        options.refuse(*_names("ending"), why=why)
        return start, Latest()
    end = _position(options, "ending", "latest") or Latest()
    _refuse_mark(options, "startingOffsets", start, "latest", "begin")
    _refuse_mark(options, "endingOffsets", end, "earliest", "end")
    for problem in contradictions(start, end):
        options.tell(problem)
    return start, end


def _start(options: OptionReader) -> Position | None:
    strategy: WhenMissing = "error"
    if options.choice(STRATEGY, choices=("error", "latest")) == "latest":
        strategy = "latest"
    found = _position(options, "starting", strategy)
    if not options.has(*_names("starting")[:2]):
        options.refuse(STRATEGY, why="it belongs to startingTimestamp and its like; leave it out")
    return found


def _names(side: Literal["starting", "ending"]) -> tuple[str, str, str]:
    return f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"


def _position(
    options: OptionReader, side: Literal["starting", "ending"], when_missing: WhenMissing
) -> Position | None:
    one_for_all, by_partition, offsets = names = _names(side)
    name = options.which(*names)
    found: int | Offsets | Position | None
    if name == one_for_all:
        found = options.number(name)
        return None if found is None else Since(found, when_missing, name)
    if name == by_partition:
        found = options.json(name, parse=numbers_of_partitions)
        return None if found is None else Since(found, when_missing, name)
    return _offsets(options, offsets)


def _offsets(options: OptionReader, name: str) -> Position | None:
    text = options.text(name)
    if text is None:
        return None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not text.startswith("{"):
        example = json.dumps({"topic": {"0": 5, "1": EARLIEST}})
        options.tell(f"{name} = {text!r}: expected earliest, latest or JSON as in {example}")
        return None
    found = options.json(name, parse=partial(numbers_of_partitions, low=EARLIEST))
    return None if found is None else At(found, name)


def _refuse_mark(
    options: OptionReader, name: str, position: Position, word: str, verb: str
) -> None:
    """Refuse a batch that begins at the end, or ends at the beginning, of any partition."""
    marks = flat(position.offsets) if isinstance(position, At) else {}
    marked = [key for key, offset in marks.items() if offset == _MARKS[word]]
    where = f" in {shown(marked)} ({_MARKS[word]})" if marked else ""
    if marked or position == _WORDS[word]:
        options.tell(
            f"{name}: a batch cannot {verb} at {word}{where}, where it would have no records"
        )
