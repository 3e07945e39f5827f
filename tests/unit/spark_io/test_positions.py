"""Where reading begins, once brokers are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import InvalidConfig
from spark_io.positions import At, Earliest, Latest, Since, contradictions, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spark_io.offsets import Key
    from spark_io.positions import Position

A, B, C = ("t", 0), ("t", 1), ("u", 0)


class Logs:
    """Three partitions from 10 to 20, whose records have their offset for a timestamp."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[Key]]] = []

    def earliest(self, keys: Collection[Key]) -> dict[Key, int]:
        return self._answer("earliest", keys, 10)

    def latest(self, keys: Collection[Key]) -> dict[Key, int]:
        return self._answer("latest", keys, 20)

    def since(self, moments: Mapping[Key, int]) -> dict[Key, int | None]:
        self.asked.append(("since", sorted(moments)))
        return {key: max(at, 10) if at < 20 else None for key, at in moments.items()}

    def _answer(self, question: str, keys: Collection[Key], offset: int) -> dict[Key, int]:
        assert keys, "a question about nothing"
        self.asked.append((question, sorted(keys)))
        return dict.fromkeys(keys, offset)


@pytest.mark.parametrize(
    ("position", "expected", "asked"),
    [
        (Earliest(), (10, 10, 10), [("earliest", [A, B, C])]),
        (Latest(), (20, 20, 20), [("latest", [A, B, C])]),
        (At({"t": {0: 12, 1: 13}, "u": {0: 0}}), (12, 13, 0), []),
        (At({"t": {0: -2, 1: 13}, "u": {0: -2}}), (10, 13, 10), [("earliest", [A, C])]),
        (
            At({"t": {0: -1, 1: -2}, "u": {0: -1}}),
            (20, 10, 20),
            [("earliest", [B]), ("latest", [A, C])],
        ),
        (Since(15), (15, 15, 15), [("since", [A, B, C])]),
        (
            Since({"t": {0: 3, 1: 15}, "u": {0: 99}}, "latest"),
            (10, 15, 20),
            [("since", [A, B, C]), ("latest", [C])],
        ),
    ],
)
def test_positions(
    position: Position, expected: tuple[int, int, int], asked: list[tuple[str, list[Key]]]
) -> None:
    """Each question once, and only where there is one."""
    logs = Logs()
    first, second, third = expected
    assert resolve(position, [C, A, B], logs) == {"t": {0: first, 1: second}, "u": {0: third}}
    assert logs.asked == asked


@pytest.mark.parametrize("position", [Earliest(), Latest(), At({}), Since(5), Since({})])
def test_nothing_to_read(position: Position) -> None:
    """A pattern that matches nothing yet."""
    logs = Logs()
    assert resolve(position, [], logs) == {}
    assert logs.asked == []


def test_offsets_of_other_partitions() -> None:
    """Both kinds are told at once."""
    with pytest.raises(InvalidConfig) as caught:
        resolve(At({"t": {0: 5}, "x": {7: 1}}), [A, B, C], Logs())
    assert caught.value.problems == [
        "startingOffsets does not name t-1, u-0: name all that are read, with -2 for earliest and"
        " -1 for latest",
        "startingOffsets names x-7: leave out what is not read, or read it",
    ]


def test_times_of_other_partitions() -> None:
    """The option that was given is named."""
    position = Since({"t": {0: 5}}, option="endingOffsetsByTimestamp")
    with pytest.raises(InvalidConfig, match=r"^endingOffsetsByTimestamp does not name t-1: "):
        resolve(position, [A, B], Logs())


def test_many_partitions_are_not_all_named() -> None:
    """A message is to be read."""
    keys = [("t", number) for number in range(12)]
    with pytest.raises(InvalidConfig, match="name t-0, t-1, t-2, t-3, t-4 and 7 more: "):
        resolve(At({}), keys, Logs())


def test_all_records_are_older() -> None:
    """An error, unless another strategy was chosen."""
    with pytest.raises(InvalidConfig, match=r"of t-1 are older than 99; .*Strategy = latest"):
        resolve(Since({"t": {0: 5, 1: 99}}), [A, B], Logs())


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (Earliest(), Latest(), None),
        (At({"t": {0: 5}}), Latest(), None),
        (At({"t": {0: 5}}), Since(5), None),
        (Since(5), Since({"t": {0: 3}}), None),
        (At({"t": {0: 5, 1: -2}}), At({"t": {0: 5, 1: 0}}, "endingOffsets"), None),
        (At({"t": {0: 5}}), At({"t": {0: -1}}, "endingOffsets"), None),
        (
            At({"t": {0: 5, 1: 1}}),
            At({"t": {0: 4, 1: 1}}, "endingOffsets"),
            "t-0: startingOffsets is after endingOffsets: exchange them",
        ),
        (
            At({"t": {0: 5, 1: 1}}),
            At({"t": {0: 5, 2: 1}}, "endingOffsets"),
            "startingOffsets and endingOffsets name different partitions (t-1, t-2): name the same",
        ),
        (Since(5), Since(5, option="endingTimestamp"), None),
        (
            Since(6),
            Since(5, option="endingTimestamp"),
            "startingTimestamp = 6 is after endingTimestamp = 5: exchange them",
        ),
        (
            Since({"t": {0: 6}}, option="startingOffsetsByTimestamp"),
            Since({"t": {0: 5}}, option="endingOffsetsByTimestamp"),
            "t-0: startingOffsetsByTimestamp is after endingOffsetsByTimestamp: exchange them",
        ),
    ],
)
def test_a_start_after_the_end(start: Position, end: Position, told: str | None) -> None:
    """As far as it can be seen without asking."""
    assert contradictions(start, end) == ([] if told is None else [told])
