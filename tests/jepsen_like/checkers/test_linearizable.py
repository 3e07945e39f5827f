"""The checker of linearizability: good histories pass, what is planted is found.

Histories are written as one line for each operation: process, times, what happened. Beside planted
ones there are small random ones, judged by trying every order, and large ones made from a register.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from random import Random

import pytest

from jepsen_like.checkers import linearizable
from jepsen_like.checkers.linearizable import NoVerdict, Violation, check
from jepsen_like.checkers.registers import Kind, Operation, Outcome, Unknown
from tests.jepsen_like.checkers.register_histories import brute_force, recorded, small_history

LINE = re.compile(r"(\d+) +\[(\d+), (\d+|\.\.\.)\] +(.*)")


def history(text: str, *, key: str = "x") -> list[Operation]:
    """Lines as above: `fail` and `found` end one that failed, `...` is an unknown end."""
    return [_operation(line, key) for line in text.strip().splitlines()]


def _operation(line: str, key: str) -> Operation:
    match = LINE.fullmatch(line.strip())
    assert match, line
    process, start, end, what = match.groups()
    kind, *words = what.split()
    numbers = [None if word == "None" else int(word) for word in words if word not in WORDS]
    failed = "fail" in words or "found" in words
    ended = Outcome.FAIL if failed else Outcome.OK
    return Operation(
        process=int(process),
        kind=Kind(kind),
        key=key,
        outcome=Outcome.INFO if end == "..." else ended,
        invoked_at=int(start),
        returned_at=math.inf if end == "..." else int(end),
        expected=numbers[0] if kind == "cas" else None,
        value=numbers[1 if kind == "cas" else 0],
        found=numbers[-1] if "found" in words else Unknown.VALUE,
    )


WORDS = {"fail", "found"}
GOOD = {
    "nothing happened": "1 [0, 1] read None",
    "one after the other": """
        1 [0, 1] write 1
        2 [2, 3] read 1
        1 [4, 5] cas 1 2
        2 [6, 7] read 2""",
    "a read beside a write sees either value": """
        1 [0, 1] write 1
        1 [2, 9] write 2
        2 [3, 4] read 1
        2 [5, 6] read 2""",
    "the order of writes at the same time is free": """
        1 [0, 9] write 1
        2 [0, 9] write 2
        3 [10, 11] read 1""",
    "ends that touch are at the same time": """
        1 [0, 1] write 1
        2 [1, 2] read None""",
    "of two that compare one succeeds": """
        1 [0, 1] write 1
        2 [2, 5] cas 1 2
        3 [2, 5] cas 1 3 found 2
        4 [6, 7] read 2""",
    "what failed did not happen": """
        1 [0, 1] write 1
        2 [2, 3] write 2 fail
        2 [2, 3] cas 1 3 fail
        3 [4, 5] read 1""",
    "what is unknown took effect late": """
        1 [0, 1] write 1
        2 [2, ...] write 2
        1 [3, 4] read 1
        1 [5, 6] write 3
        1 [7, 8] read 3
        1 [9, 10] read 2""",
    "what is unknown never took effect": """
        1 [0, 1] write 1
        2 [2, ...] write 2
        2 [3, ...] cas 1 3
        1 [4, 5] read 1
        1 [6, 7] cas 1 4
        1 [8, 9] read 4""",
    "one unknown step led to another": """
        1 [0, ...] write 1
        2 [0, ...] cas 1 2
        3 [0, ...] cas 2 3
        4 [5, 6] read None
        4 [7, 8] read 3""",
    "an unknown read says nothing": """
        1 [0, 1] write 1
        2 [2, ...] read 7""",
    "the same value twice": """
        1 [0, 1] write 1
        1 [2, 3] write 2
        2 [2, ...] write 1
        3 [4, 5] read 2
        3 [6, 7] read 1""",
}
BAD = {
    "a stale read": (
        """
        1 [0, 1] write 1
        1 [2, 3] write 2
        2 [4, 5] read 1
        2 [6, 7] read 2""",
        "[4, 5] process 2: read 1 (ok)",
    ),
    "a read that goes back": (
        """
        1 [0, 1] write 1
        1 [2, 9] write 2
        2 [3, 4] read 2
        3 [5, 6] read 1""",
        "[5, 6] process 3: read 1 (ok)",
    ),
    "a lost update": (
        """
        1 [0, 1] write 1
        2 [2, 3] cas 1 2
        3 [4, 5] read 1""",
        "[4, 5] process 3: read 1 (ok)",
    ),
    "a compare-and-set that succeeded twice": (
        """
        1 [0, 1] write 1
        2 [2, 5] cas 1 2
        3 [3, 6] cas 1 3
        4 [7, 8] read 3""",
        "[3, 6] process 3: cas 1 to 3 (ok)",
    ),
    "a value out of nowhere": (
        "1 [0, 1] read 7",
        "[0, 1] process 1: read 7 (ok)",
    ),
    "a value of an operation that failed": (
        """
        1 [0, 1] write 1 fail
        2 [2, 3] read 1""",
        "[2, 3] process 2: read 1 (ok)",
    ),
    "a refusal that found what was gone": (
        """
        1 [0, 1] write 1
        1 [2, 3] write 2
        2 [4, 5] cas 9 3 found 1""",
        "[4, 5] process 2: cas 9 to 3 (fail, found 1)",
    ),
    "an unknown effect that came and went": (
        """
        1 [0, 1] write 1
        2 [2, ...] write 2
        3 [3, 4] read 2
        3 [5, 6] read 1""",
        "[5, 6] process 3: read 1 (ok)",
    ),
    "an unknown effect before its cause": (
        """
        1 [0, 1] write 1
        3 [2, 3] read 2
        2 [4, ...] write 2""",
        "[2, 3] process 3: read 2 (ok)",
    ),
    "an unknown compare-and-set of what was never there": (
        """
        1 [0, 1] write 1
        2 [2, ...] cas 8 2
        3 [3, 4] read 2""",
        "[3, 4] process 3: read 2 (ok)",
    ),
    "one unknown effect that was needed twice": (
        """
        1 [0, ...] write 1
        2 [2, 3] cas 1 2
        3 [4, 5] cas 1 3""",
        "[4, 5] process 3: cas 1 to 3 (ok)",
    ),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_good_history_passes(text: str) -> None:
    """There is an order of its operations that explains every answer."""
    assert check(history(text)) is None


@pytest.mark.parametrize(("text", "operation"), BAD.values(), ids=BAD)
def test_a_bad_history_is_found(text: str, operation: str) -> None:
    """And the first operation that no order explains is named."""
    violation = check(history(text))
    assert violation
    assert str(violation.operation) == operation


def test_a_violation_says_what_it_saw() -> None:
    """The key, the operation, what the register could hold, and what happened around it."""
    text = BAD["a compare-and-set that succeeded twice"][0]
    assert str(check(history(text, key="k"))) == (
        "key 'k' is not linearizable: no order of its first 3 operations allows\n"
        "    [3, 6] process 3: cas 1 to 3 (ok)\n"
        "because the register could only hold 2. Before it, or beside it:\n"
        "    [0, 1] process 1: write 1 (ok)\n"
        "    [2, 5] process 2: cas 1 to 2 (ok)"
    )


def test_of_a_long_beginning_the_end_is_shown() -> None:
    """Nobody reads a thousand lines to find the one that matters."""
    long = "\n".join(f"1 [{2 * i}, {2 * i + 1}] write {i}" for i in range(500))
    violation = check(history(f"{long}\n2 [2000, 2001] read 7"))
    assert violation
    assert len(violation.beginning) == 501
    assert "\n    ...\n" in str(violation)
    assert str(violation).count("\n") < 20


def test_keys_are_apart() -> None:
    """What happens to one key explains nothing of another, and the first violation is told."""
    text = "1 [0, 1] write 1\n2 [2, 3] read 1"
    assert check(history(text, key="x") + history(text, key="y")) is None
    later, first = history("1 [4, 5] read 1", key="x"), history("1 [2, 3] read 1", key="y")
    violation = check(later + first)
    assert violation
    assert violation.key == "y"


def test_the_register_may_begin_with_a_value() -> None:
    """Where something was there before, reads see it."""
    assert check(history("1 [0, 1] read 5"), initial=5) is None
    assert check(history("1 [0, 1] read 5"), initial=4)


def test_small_histories_are_judged_as_by_trying_every_order() -> None:
    """Random ones of few operations and values, good and bad, with all kinds of outcomes."""
    verdicts = []
    for seed in range(600):
        operations = small_history(Random(seed))
        verdicts.append(brute_force(operations))
        assert (check(operations) is None) == verdicts[-1], f"seed {seed}"
    assert 100 < sum(verdicts) < 500


def test_a_violation_is_the_shortest_beginning() -> None:
    """Without its last operation, what is left can be explained; with it, it cannot."""
    for seed in range(200):
        if violation := check(small_history(Random(seed))):
            certain = brute_force(as_of(violation, violation.operation.returned_at))
            before = brute_force(as_of(violation, violation.operation.returned_at - 0.5))
            assert (certain, before) == (False, True), f"seed {seed}"


def as_of(violation: Violation, now: float) -> list[Operation]:
    """What is known at a time: what is open then may have had its effect, unless it fails later."""
    return [
        operation if operation.returned_at <= now else unknown(operation)
        for operation in violation.beginning
        if operation.invoked_at <= now
        and not (operation.outcome is Outcome.FAIL and operation.returned_at > now)
    ]


def unknown(operation: Operation) -> Operation:
    return replace(operation, outcome=Outcome.INFO, returned_at=math.inf, found=Unknown.VALUE)


@pytest.mark.parametrize("unknown_share", [0.0, 0.2])
def test_a_long_history_of_a_real_register_passes(unknown_share: float) -> None:
    """A thousand operations of five clients; some never hear how it ended."""
    assert check(recorded(Random(1), 1000, unknown_share=unknown_share)) is None


@pytest.mark.parametrize("unknown_share", [0.0, 0.2])
def test_one_stale_read_in_a_long_history_is_found(unknown_share: float) -> None:
    """The violation is certain where the stale read returns, and not a moment later."""
    operations = recorded(Random(2), 1000, unknown_share=unknown_share)
    reads = [op for op in operations if op.kind is Kind.READ and op.outcome is Outcome.OK]
    stale = replace(reads[-1], value=reads[len(reads) // 2].value)
    violation = check([stale if op is reads[-1] else op for op in operations])
    assert violation
    assert violation.operation == stale


def test_what_is_too_tangled_gets_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search without end would pass for a test that hangs."""
    monkeypatch.setattr(linearizable, "STATES_MAX", 100)
    writes = "\n".join(f"{i} [0, 100] write {i}" for i in range(12))
    with pytest.raises(NoVerdict, match="more than 100 states"):
        check(history(f"{writes}\n20 [50, 60] read 99"))
