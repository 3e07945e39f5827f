"""Names of topics of dead letters and retries, and headers that are read as they were written
(A12.4, A12.5).
"""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.letters import (
    ERROR_CHARS_MAX,
    REDRIVE_PREFIX,
    Origin,
    attempts_before,
    dead_letter_topic,
    error_text,
    group_part,
    letter_headers,
    most_frequent,
    plain_headers,
    read_letter,
    redriven_headers,
    retry_topic,
)
from raftmq.model import GROUP_CHARS_MAX
from raftmq.topic_config import topic_name_problem

RECORD = ConsumerRecord("orders", 3, 1042, 1_764_364_800_000, b"k", b"v", (("trace", b"7"),))


@given(st.text(min_size=1, max_size=255))
def test_every_group_has_a_topic(group: str) -> None:
    """Whose name is allowed, and is the group's own where that is."""
    topic = dead_letter_topic(group)
    assert topic.startswith("__dead.")
    assert topic_name_problem(topic) == topic_name_problem(retry_topic(group)) == ""
    assert retry_topic(group).removeprefix("__retry.") == topic.removeprefix("__dead.")
    if topic_name_problem(f"{REDRIVE_PREFIX}{group}") == "":
        assert topic == f"__dead.{group}"
    assert len(REDRIVE_PREFIX + group_part(group)) <= GROUP_CHARS_MAX


@pytest.mark.parametrize(
    ("group", "start"),
    [
        ("billing for EU", "billing-for-EU-"),
        ("a" * 191, "a" * 181 + "-"),
        ("Rechnungen äöü", "Rechnungen-"),
        ("请求", ""),
    ],
)
def test_a_name_that_no_topic_may_have(group: str, start: str) -> None:
    """What is left of it, and digits, so that two such groups do not meet."""
    digits = hashlib.sha256(group.encode()).hexdigest()[:8]
    assert group_part(group) == f"{start}{digits}"
    assert len(dead_letter_topic(group)) <= 200


def test_the_longest_name_that_is_taken_as_it_is() -> None:
    assert dead_letter_topic("a" * 190) == f"__dead.{'a' * 190}"


def test_names_that_differ_in_what_is_left_out() -> None:
    assert group_part("a b") != group_part("a/b") != group_part("a-b")


def test_headers() -> None:
    """The record's own come first, and what was there of such names gives way."""
    headers = letter_headers(RECORD, "billing", attempts=4, error="ValueError: no")
    assert headers == (
        ("trace", b"7"),
        ("raftmq.origin", b"orders/3/1042/1764364800000"),
        ("raftmq.attempts", b"4"),
        ("raftmq.error", b"ValueError: no"),
        ("raftmq.group", b"billing"),
    )
    letter = read_letter(headers)
    assert letter.origin == Origin("orders", 3, 1042, 1_764_364_800_000)
    assert (letter.attempts, letter.error, letter.group) == (4, "ValueError: no", "billing")
    assert plain_headers(headers) == RECORD.headers


def test_without_an_error() -> None:
    """There is no header for it."""
    headers = letter_headers(RECORD, "billing", attempts=1, error="")
    assert [name for name, _ in headers].count("raftmq.error") == 0
    assert read_letter(headers).error == ""


def test_sent_back_and_rejected_again() -> None:
    """It says how often, and has its new origin once; headers of programs may come twice."""
    own = (("trace", b"7"), ("trace", None), ("raftmq.trace", b"8"), ("raftmq.", None))
    headers = own
    for number in range(1, 4):
        record = ConsumerRecord("orders", 0, number, -1, None, None, headers)
        letter = letter_headers(record, "g", attempts=1, error=f"E: {number}")
        assert read_letter(letter).origin == Origin("orders", 0, number, -1)
        assert len(letter) == len({*letter}) == len(own) + 4 + (number > 1)
        headers = redriven_headers(letter, read_letter(letter))
        assert headers == (*own, ("raftmq.redriven", str(number).encode()))


def test_a_record_that_was_moved_before_keeps_its_origin() -> None:
    """Where a group reads it out of a topic of raftmq itself; in another one it is a copy by a
    program, whose own place counts."""
    headers = letter_headers(RECORD, "billing", attempts=2, error="")
    moved = ConsumerRecord("__dead.billing", 0, 5, 0, None, None, headers)
    assert read_letter(letter_headers(moved, "g", attempts=3, error="")).origin == Origin(
        "orders", 3, 1042, 1_764_364_800_000
    )
    assert moved.origin == RECORD.origin == Origin("orders", 3, 1042, 1_764_364_800_000)
    copied = ConsumerRecord("copies", 0, 5, 0, None, None, headers)
    assert copied.origin == Origin("copies", 0, 5, 0)
    found = read_letter(letter_headers(copied, "g", attempts=3, error="")).origin
    assert found == Origin("copies", 0, 5, 0)


def test_attempts_count_on() -> None:
    """In the group's own topic of retries, and nowhere else: elsewhere the header tells of another
    group, or of an earlier life."""
    headers = letter_headers(RECORD, "billing", attempts=2, error="")

    def before(topic: str, headers: object = headers) -> int:
        return attempts_before(ConsumerRecord(topic, 0, 5, 0, None, None, headers), "billing")  # type: ignore[arg-type]

    assert before("__retry.billing") == 2
    assert before("__retry.billing", ()) == 0
    assert before("__retry.billing", (("raftmq.attempts", b"-7"),)) == 0
    assert before("__retry.others") == before("__dead.billing") == before("orders") == 0


@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=40)), max_size=5))
def test_what_anybody_may_have_written(pairs: list[tuple[str, bytes | None]]) -> None:
    """Is read, or passed over; it raises nothing."""
    read_letter(tuple(pairs))
    for name in ("origin", "attempts", "redriven"):
        for _, value in pairs:
            letter = read_letter(((f"raftmq.{name}", value),))
            assert letter.redriven == 0 or value is not None


@pytest.mark.parametrize(
    "text", ["", "orders", "a/1/2", "a/1/2/x", "/1/2/3", "a/b/1/2/3", "a/1/2/"]
)
def test_no_origin(text: str) -> None:
    assert Origin.parsed(text) is None


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, ""),
        (ValueError("no such account\nsecond line"), "ValueError: no such account"),
        (KeyError("id"), "KeyError: 'id'"),
        (TimeoutError(), "TimeoutError"),
        ("\n  by hand \n why", "by hand"),
        (RuntimeError("x" * 999), f"RuntimeError: {'x' * 999}"[:ERROR_CHARS_MAX]),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SilentError(), "SilentError"),
    ],
)
def test_what_is_kept_of_an_error(error: BaseException | str | None, text: str) -> None:
    assert error_text(error) == text


def test_the_most_frequent_errors() -> None:
    assert most_frequent({"b": 2, "c": 1, "a": 1}, 2) == [("b", 2), ("a", 1)]
