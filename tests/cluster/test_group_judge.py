"""The rig itself: the verdict on a group finds what is wrong, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.group_judge import Evidence, Observation, Span, Verdict
from tests.cluster.group_ownership import Blow, Struck
from tests.cluster.group_words import (
    BATCH,
    BEFORE,
    MANUAL,
    Assigned,
    Committed,
    Ended,
    Handed,
    Lost,
    MemberOrder,
    Problem,
    Refused,
    Revoked,
    Scattered,
    decode_log,
    encode,
    parse_order,
)

if TYPE_CHECKING:
    from tests.cluster.group_words import AnyWord

pytestmark = pytest.mark.cluster


def handed(at: float, base_offset: int, count: int, *, step_at: float | None = None) -> Handed:
    """Of partition 0, of which a record's number is its offset."""
    numbers = list(range(base_offset, base_offset + count))
    return Handed(at, at if step_at is None else step_at, 0, base_offset, numbers)


def assigned(at: float) -> Assigned:
    return Assigned(at, 1, [0])


def judged(
    *logs: list[AnyWord], commits: str = BATCH, first: str = "", count: int = 6, **changes: Any
) -> Verdict:
    """Members 1, 2, ...; `first`: how the first one commits; `count` records were acknowledged."""
    evidence = Evidence(
        acknowledged={(0, offset): offset for offset in range(count)},
        denied=frozenset(),
        key_count=1,
        logs=dict(enumerate(logs, 1)),
        commits=dict.fromkeys(range(1, len(logs) + 1), commits) | ({1: first} if first else {}),
        struck=[],
        outages=[],
        observations=[],
    )
    return Verdict(evidence._replace(**changes))


def seen(*found: tuple[float, int]) -> list[Observation]:
    """Of partition 0: asked half a second before it was heard."""
    return [Observation(heard_at - 0.5, heard_at, {0: offset}) for heard_at, offset in found]


GIVES_UP: list[AnyWord] = [assigned(1), handed(2, 0, 3), Revoked(5, 2, [0]), Ended(6)]
GOES_ON: list[AnyWord] = [assigned(10), handed(11, 3, 3)]
AGAIN: list[AnyWord] = [assigned(10), handed(11, 0, 6)]  # from the beginning
KILLED = [Struck(1, Blow.KILLED, 5.0, 5.5)]
STOPPED = [Struck(1, Blow.STOPPED, 5.0, 12.0)]


def test_all_is_well() -> None:
    """A partition goes from one to the other, and nothing comes twice."""
    verdict = judged(GIVES_UP, GOES_ON, observations=seen((4, 2), (7, 3), (12, 6)))
    assert (verdict.findings, verdict.handed_count, verdict.never) == ([], 6, 0)
    assert not verdict.repeats


@pytest.mark.parametrize(
    ("log", "finding"),
    [
        ([handed(2, 0, 6)], "handed out, and not assigned"),
        ([assigned(1), handed(2, 0, 2), handed(3, 3, 3)], "at 3, 3.000: handed out after 1"),
        ([assigned(1), handed(2, 0, 3), handed(3, 2, 4)], "at 2, 3.000: handed out after 2"),
        ([assigned(1), assigned(2), handed(3, 0, 6)], "was assigned at 2.000 to who has it"),
        ([assigned(1), Scattered(2, 0, [0, 2]), handed(3, 0, 6)], "with gaps: [0, 2]"),
        ([assigned(1), handed(2, 0, 6), Problem(3, "a bug", is_passing=False)], "a bug"),
        ([assigned(1), handed(2, 0, 5)], "handed out to nobody: 1: (0, 5)"),
        ([assigned(1), Handed(2, 2, 0, 0, [0, 1, 2, 3, 4, 9])], "(0, 5) was 5, and reads 9"),
        ([assigned(1), handed(2, 0, 6), Handed(3, 3, 0, 6, [5])], "(0, 6) is 5 after 5"),
    ],
)
def test_what_one_log_says_is_found(log: list[AnyWord], finding: str) -> None:
    """There is one member."""
    found = judged(log).findings
    assert any(finding in each for each in found), found


def test_two_that_have_a_partition_are_found() -> None:
    """The second was assigned it before the first was told that it is gone."""
    other: list[AnyWord] = [assigned(4), handed(6, 3, 3)]
    assert "has it until 5.000" in judged(GIVES_UP, other).findings[0]
    other = [assigned(4.9), Revoked(5.1, 1, [0]), assigned(9), handed(9.5, 3, 3)]
    assert "has it until 5.000" in judged(GIVES_UP, other).findings[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"struck": KILLED}, "its member was killed"),
        ({"struck": STOPPED}, "its member was stopped"),
        ({"outages": [Span(3.0, 4.0)]}, "given up while a broker was down"),
        ({"first": MANUAL}, "given up uncommitted"),
    ],
)
def test_what_comes_twice_for_a_reason(changes: dict[str, Any], reason: str) -> None:
    """The first member had it when something happened."""
    first = GIVES_UP[:2] if "struck" in changes else GIVES_UP
    verdict = judged(first, AGAIN, **changes)
    assert (verdict.findings, verdict.repeats) == ([], {reason: 3})


def test_what_comes_twice_after_a_loss() -> None:
    """The member was silent for too long; what it had committed by hand does not come again."""
    lost: list[AnyWord] = [assigned(1), handed(2, 0, 3), Lost(5, [0])]
    verdict = judged(lost, AGAIN)
    assert (verdict.findings, verdict.repeats) == ([], {"lost": 3})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"struck": [Struck(2, Blow.STOPPED, 5.0, 9.0)]},
        {"outages": [Span(5.5, 12.0)]},
        {"commits": MANUAL, "first": BATCH},
    ],
)
def test_what_comes_twice_without_a_reason_is_found(changes: dict[str, Any]) -> None:
    """Nothing has happened to the first member, or too late, or to the other one."""
    found = judged(GIVES_UP, AGAIN, **changes).findings
    assert any("came twice: 3" in each for each in found), found


def test_at_most_once_nothing_excuses() -> None:
    """It may be lost there, and may not come again."""
    changes: dict[str, Any] = {"commits": BEFORE, "struck": KILLED}
    assert any("came twice" in each for each in judged(GIVES_UP[:2], AGAIN, **changes).findings)
    verdict = judged(GIVES_UP[:2], [assigned(10), handed(11, 4, 2)], **changes)
    assert (verdict.findings, verdict.never) == ([], 1)


def test_records_after_a_stop_are_found() -> None:
    """It goes on at 12 and gets more; what was on its way to it when it was stopped is excused."""
    log: list[AnyWord] = [assigned(1), handed(2, 0, 3)]
    excused = [*log, handed(12.1, 3, 3, step_at=5.1)]
    assert not judged(excused, struck=STOPPED).findings
    found = judged([*log, handed(12.1, 3, 3, step_at=12.05)], struck=STOPPED).findings
    assert any("was handed out what it had before" in each for each in found), found
    again = [*log, Lost(12.05, [0]), assigned(13), handed(14, 3, 3)]
    assert not judged(again, struck=STOPPED).findings


def test_what_a_stopped_member_had_is_free() -> None:
    """Another one gets it meanwhile, but not before the stop."""
    first: list[AnyWord] = [assigned(1), handed(2, 0, 3), Lost(12.1, [0])]
    assert not judged(first, GOES_ON, struck=STOPPED).findings
    early: list[AnyWord] = [assigned(4), handed(11, 3, 3)]
    assert "has it until 5.000" in judged(first, early, struck=STOPPED).findings[0]


@pytest.mark.parametrize(
    ("observations", "finding"),
    [
        (seen((4, 3), (7, 2)), "commits go back: 1: 2 after 3"),
        (seen((1.9, 1)), "1 committed, and 0 not handed out"),
        (seen((4, 4)), "4 committed, and 3 not handed out"),
    ],
)
def test_commits_that_are_wrong_are_found(observations: list[Observation], finding: str) -> None:
    """As their coordinator tells them."""
    found = judged(GIVES_UP, GOES_ON, observations=observations).findings
    assert any(finding in each for each in found), found


def test_commits_that_nobody_honours_are_found() -> None:
    """Heard of before the next one begins, from the coordinator or by the member itself."""
    found = judged(GIVES_UP, AGAIN, observations=seen((7, 3))).findings
    assert any("begins at 0, 3 is committed" in each for each in found), found
    by_hand: list[AnyWord] = [
        *GIVES_UP[:2],
        Committed(3, 0, 2),
        Refused(4, 0, 3, "no"),
        Lost(5, [0]),
    ]
    found = judged(by_hand, AGAIN, commits=MANUAL).findings
    assert any("begins at 0, 2 is committed" in each for each in found), found


def test_at_most_once_commits_come_first() -> None:
    """Asked after the records were handed out, the coordinator has to know."""
    found = judged(GIVES_UP, GOES_ON, commits=BEFORE, observations=seen((4, 2))).findings
    assert found == ["partition 0: 2 handed out, and 2 committed"]
    assert not judged(
        GIVES_UP, GOES_ON, commits=BEFORE, observations=seen((2.1, 0), (4, 3))
    ).findings


def test_what_was_denied_is_found() -> None:
    """It stands in the log nevertheless."""
    found = judged(GIVES_UP, GOES_ON, count=5, denied=frozenset([5])).findings
    assert found == ["there, though denied: 1: 5"]


def test_words_survive_a_kill() -> None:
    """All lines but one that is torn; and an order is the same on both sides."""
    words: list[AnyWord] = [assigned(1), handed(2, 0, 3), Lost(3, [0]), Ended(4)]
    data = b"".join(map(encode, words))
    assert decode_log(data) == words
    assert decode_log(data[:-3]) == words[:-1]
    assert not decode_log(b"")
    order = MemberOrder("h:1", "g", "t", "/f", BATCH, "records", 6000)
    assert parse_order(order.arguments()) == order
