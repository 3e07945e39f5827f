"""Which values may be where: at one offset, once, only if sent, and not if that failed."""

from __future__ import annotations

import pytest

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.script import Script


def test_two_reads_of_one_offset_must_agree() -> None:
    """The sentence names key, offset, both values, and who saw them."""
    script = Script()
    script.send([5, 6])
    script.poll([(0, 5)], process=1)
    script.poll([(0, 6)], process=2)
    finding = script.finding("inconsistent-offsets")
    assert finding.examples == ["key 'k', offset 0 holds 5 (read in event 3); 6 (read in event 5)"]


def test_a_read_must_agree_with_what_all_acknowledged() -> None:
    """An offset was promised to one value, and another stands there."""
    script = Script()
    script.send([5, 6], [0, 1])
    script.poll([(0, 6)])
    assert "inconsistent-offsets" in script.found()


def test_what_one_acknowledged_may_be_replaced() -> None:
    """The leader was lost before the others had it; its offset went to another value."""
    script = Script()
    script.send([5], [0], acks=1)
    script.send([6], [0])
    script.poll([(0, 6)])
    assert script.found() == {}
    assert script.finding("lost-write").figures == {"lost lightly": 1}


def test_reads_of_what_one_acknowledged_must_agree_nevertheless() -> None:
    """Only what is committed is read, and that never changes."""
    script = Script()
    script.send([5], [0], acks=1)
    script.send([6], acks=1)
    script.poll([(0, 5)], process=1)
    script.poll([(0, 6)], process=2)
    assert "inconsistent-offsets" in script.found()


def test_polls_of_unknown_outcome_are_believed() -> None:
    """However they ended, their records were committed."""
    script = Script()
    script.send([5, 6])
    script.poll([(0, 5)], process=1)
    script.poll([(0, 6)], process=2, kind=Type.INFO)
    assert "inconsistent-offsets" in script.found()


def test_a_replica_is_believed_below_its_high_watermark_only() -> None:
    """What it has above may be cut yet."""
    script = Script()
    script.send([5], [0])
    script.send([6], kind=Type.INFO)
    script.replica(1, [5], high_watermark=1)
    script.replica(2, [6], high_watermark=0)
    assert "inconsistent-offsets" not in script.found()
    script.replica(2, [6], high_watermark=1)
    assert "inconsistent-offsets" in script.found()


def test_what_was_sent_once_stands_once() -> None:
    """Its client was told that it is done, and never sent it again."""
    script = Script()
    script.send([5])
    script.poll([(0, 5), (1, 5)])
    assert script.found() == {"duplicate": 1}
    assert script.finding("duplicate").examples == [
        "key 'k', value 5, sent once in event 0, is at offsets "
        "0 (read in event 3); 1 (read in event 3)"
    ]


def test_what_one_acknowledged_stands_once_as_well() -> None:
    """It may be lost, but nobody may make two of it."""
    script = Script()
    script.send([5], [0], acks=1)
    script.poll([(0, 5), (1, 5)])
    assert script.found() == {"duplicate": 1}


def test_what_one_acknowledged_stands_where_it_said() -> None:
    """Or nowhere: it may have been replaced. Sent again, it may stand where the first copy does."""
    for is_repeated, count in ((False, 1), (True, 0)):
        script = Script()
        script.send([5], [7], acks=1, is_repeated=is_repeated)
        script.poll([(9, 5)])
        assert script.finding("duplicate").count == count
    script = Script()
    script.send([5], [7], acks=1)
    script.poll([(9, 5)])
    assert script.finding("duplicate").examples == [
        "key 'k', value 5, sent once in event 0, was acknowledged at offset 7 in event 1, but was "
        "read at offset 9 in event 3"
    ]


def test_copies_of_what_may_have_been_sent_again_are_counted() -> None:
    """The client repeated it, or does not know whether it was done: nothing is wrong."""
    script = Script()
    script.send([5], [1], is_repeated=True)
    script.send([6], kind=Type.INFO)
    script.poll([(0, 5), (1, 5), (2, 6), (3, 6)])
    assert script.found() == {}
    assert script.finding("duplicate").figures == {"copies allowed": 2}


@pytest.mark.parametrize("acks", [-1, 1, 2])
def test_with_idempotence_nothing_stands_twice(acks: int) -> None:
    """However it ended, and if it never did; but for what a client has sent by itself once more."""
    script = Script()
    script.send([5], [0], acks=acks, is_idempotent=True)
    script.send([6], kind=Type.INFO, acks=acks, is_idempotent=True)
    script.begin(7, "send", {"key": "k", "acks": acks, "values": [7], "is_idempotent": True})
    script.poll([(0, 5), (1, 5), (2, 6), (3, 6), (4, 7), (5, 7)])
    assert script.found() == {"duplicate": 3}
    script.send([6], kind=Type.INFO, acks=acks, is_idempotent=True, process=3)
    assert script.found() == {"duplicate": 2}
    assert script.finding("duplicate").figures == {"copies allowed": 1}


def test_a_read_of_what_failed() -> None:
    """The client was told that it certainly did not happen."""
    script = Script()
    script.send([5], kind=Type.FAIL)
    script.poll([(0, 5)])
    assert script.found() == {"aborted-read": 1}
    assert script.finding("aborted-read").examples == [
        "key 'k', value 5: its send certainly failed (event 1), "
        "but it was found: read at offset 0 in event 3"
    ]


def test_a_read_of_a_value_that_failed_among_others_of_which_nobody_knows() -> None:
    """The send is unknown, and its values are not alike: one was never appended, one may be."""
    script = Script()
    script.send([5, 6], kind=Type.INFO, failed=[6])
    script.poll([(0, 5), (1, 6)])
    assert script.found() == {"aborted-read": 1}
    assert "value 6" in script.finding("aborted-read").examples[0]


def test_a_replica_that_holds_what_failed() -> None:
    """Even where it is not committed: it may be yet."""
    script = Script()
    script.send([5], kind=Type.FAIL)
    script.replica(2, [5], high_watermark=0)
    assert script.found() == {"aborted-read": 1}


def test_what_failed_first_and_was_sent_again_may_be_read() -> None:
    """By another operation, of which nobody knows that it failed."""
    script = Script()
    script.send([5], kind=Type.FAIL)
    script.send([5], kind=Type.INFO)
    script.poll([(0, 5)])
    assert script.found() == {}


def test_a_read_of_what_is_unknown_is_no_failure() -> None:
    """It was done after all."""
    script = Script()
    script.send([5], kind=Type.INFO)
    script.poll([(0, 5)])
    assert script.found() == {}


def test_a_read_of_what_nobody_sent() -> None:
    """Out of nowhere, or from another key."""
    script = Script()
    script.send([5], [0])
    script.poll([(0, 5), (1, 77)])
    assert script.found() == {"unexpected-read": 1}
    assert "value 77: nobody sent it" in script.finding("unexpected-read").examples[0]


def test_a_replica_that_holds_what_nobody_sent() -> None:
    """A record that is nobody's at all has no value, and is allowed."""
    script = Script()
    script.send([5], [0])
    script.replica(1, [5, None])
    assert script.found() == {}
    script.replica(1, [5, 77])
    assert script.found() == {"unexpected-read": 1}
