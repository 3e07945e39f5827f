"""Where a query begins and ends, out of its options. Pure.

Kafka's names and meanings; but of options of which Kafka takes one and passes over the others only
one may be given.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Literal

from spark_io.offsets import Offsets, flat, numbers_of_partitions
from spark_io.positions import EARLIEST, LATEST, At, Earliest, Latest, Since, contradictions, shown

if TYPE_CHECKING:
    from spark_io.option_reader import OptionReader
    from spark_io.positions import Position, WhenMissing

STRATEGY = "startingOffsetsByTimestampStrategy"
_WORDS: dict[str, Position] = {"earliest": Earliest(), "latest": Latest()}
_MARKS = {"earliest": EARLIEST, "latest": LATEST}


def positions(options: OptionReader, *, is_stream: bool) -> tuple[Position, Position]:
    """Start and end. The end of a stream has no meaning."""
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
    """A batch that begins at the end, or ends at the beginning, be it in one partition."""
    marks = flat(position.offsets) if isinstance(position, At) else {}
    marked = [key for key, offset in marks.items() if offset == _MARKS[word]]
    where = f" in {shown(marked)} ({_MARKS[word]})" if marked else ""
    if marked or position == _WORDS[word]:
        options.tell(
            f"{name}: a batch cannot {verb} at {word}{where}, where it would have no records"
        )
