"""The order in which sends stand in the log: whose order is promised, and whose is not."""

from __future__ import annotations

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.script import Script


def test_sends_of_one_process_in_the_wrong_order() -> None:
    """The sentence names both values, when they were sent and where they stand."""
    script = Script()
    script.send([5], [1])
    script.send([6], [0])
    assert script.found() == {"nonmonotonic-send": 1}
    assert script.finding("nonmonotonic-send").examples == [
        "key 'k': process 0 sent 5 (events 0 to 1) before 6 (events 2 to 3), "
        "but they stand at offsets 1 and 0"
    ]


def test_values_of_one_send_in_the_wrong_order() -> None:
    """Within a send, each is before the next."""
    script = Script()
    script.send([5, 6], [1, 0])
    assert script.found() == {"int-nonmonotonic-send": 1}


def test_the_order_counts_beyond_what_lies_between() -> None:
    """The one between the two has no known place."""
    script = Script()
    script.send([5], [9])
    script.send([6], kind=Type.INFO)
    script.send([7], [3])
    assert script.found() == {"nonmonotonic-send": 1}


def test_processes_have_no_order() -> None:
    """Neither knows of the other."""
    script = Script()
    script.send([5], [1], process=0)
    script.send([6], [0], process=1)
    assert script.found() == {}


def test_what_is_unknown_may_come_late() -> None:
    """Behind everything that was sent after it."""
    script = Script()
    script.send([5], kind=Type.INFO)
    script.send([6], [0])
    script.poll([(0, 6), (1, 5)])
    assert script.found() == {}


def test_what_is_unknown_does_not_come_too_early() -> None:
    """Before what was done when it was sent."""
    script = Script()
    script.send([5], [1])
    script.send([6], kind=Type.INFO)
    script.poll([(0, 6), (1, 5)])
    assert script.found() == {"nonmonotonic-send": 1}


def test_what_fewer_than_all_acknowledged_has_no_order() -> None:
    """It may be replaced, and its offset is not its place."""
    script = Script()
    script.send([5], [1], acks=1)
    script.send([6], [0])
    script.send([7], [0], acks=1)
    assert script.found() == {}


def test_of_copies_the_first_counts() -> None:
    """The later copy of the earlier value stands behind the later one: it was sent again."""
    script = Script()
    script.send([5], [2], is_repeated=True)
    script.send([6], [1])
    script.poll([(0, 5), (1, 6), (2, 5)])
    assert script.found() == {}


def test_a_first_copy_that_nobody_saw_is_no_disorder() -> None:
    """It was deleted, or not read; where whole logs are known, it is not there."""
    script = Script()
    script.send([5], [2], is_repeated=True)
    script.send([6], [1])
    assert script.found() == {}
    script.replica(1, [6, 5], log_start=1)
    assert script.found() == {}
    script.replica(1, [None, 6, 5])
    assert script.found() == {"nonmonotonic-send": 1}
