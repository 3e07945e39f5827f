"""When a value is lost: by what readers passed, by what replicas hold, and what excuses it."""

from __future__ import annotations

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.script import Script

NODES = (1, 2, 3)


def test_a_reader_from_the_beginning_passed_it() -> None:
    """It read what is behind the value, so it should have read the value."""
    script = Script()
    script.send_many(3)
    script.assign("beginning")
    script.poll([(1, 1), (2, 2)])
    assert script.found() == {"lost-write": 1, "poll-skip": 1}
    assert script.finding("lost-write").examples == [
        "key 'k', value 0, acknowledged at offset 0 in event 1: nobody read it, "
        "event 5 read offset 2"
    ]


def test_a_reader_from_somewhere_passed_it() -> None:
    """It read what is before and what is behind."""
    script = Script()
    script.send_many(3)
    script.assign("end")
    script.poll([(0, 0)])
    script.poll([(2, 2)])
    assert script.found() == {"lost-write": 1, "poll-skip": 1}


def test_what_lies_before_a_reader_that_began_at_the_end_was_not_passed() -> None:
    """Nobody knows whether it is there."""
    script = Script()
    script.send_many(3)
    script.assign("end")
    script.poll([(2, 2)])
    assert script.found() == {}


def test_one_reader_is_enough() -> None:
    """What another one skipped is a skip, and lost only where nobody read it."""
    script = Script()
    script.send_many(3)
    script.assign("beginning", process=1)
    script.poll([(0, 0), (1, 1)], process=1)
    script.poll([(0, 0)], process=2)
    script.poll([(2, 2)], process=2)
    assert script.found() == {"poll-skip": 1}


def test_what_is_behind_the_last_read_is_not_lost_yet() -> None:
    """Nobody got that far."""
    script = Script()
    script.send_many(3)
    script.assign("beginning")
    script.poll([(0, 0)])
    assert script.found() == {}


def test_unknown_sends_are_not_lost() -> None:
    """But each of their values that was acknowledged is."""
    script = Script()
    script.send([0, 1, 2], [0, None, None], kind=Type.INFO)
    script.send([3], [1])
    script.assign("beginning")
    script.poll([(1, 3)])
    assert script.found() == {"lost-write": 1, "poll-skip": 1}


def test_no_replica_has_it() -> None:
    """Nobody needs to have read anything."""
    script = Script()
    script.send_many(2)
    for node in NODES:
        script.replica(node, [0])
    assert script.found() == {"lost-write": 1, "replica-divergence": 1}
    assert "no replica has it" in script.finding("lost-write").examples[0]


def test_acknowledged_nobody_knows_where_and_in_no_replica() -> None:
    """The offset is not needed to see that it is gone."""
    script = Script()
    script.send([0], [None])
    script.replica(1, [None])
    assert script.found() == {"lost-write": 1}


def test_one_node_lacks_it_in_the_middle() -> None:
    """It knows what is committed beyond it, so it is not behind."""
    script = Script()
    script.send_many(3)
    script.replica(1, [0, 1, 2])
    script.replica(2, [0, None, 2])
    assert script.found() == {"lost-on-node": 1, "replica-divergence": 2}
    assert script.finding("lost-on-node").examples == [
        "key 'k', value 1, acknowledged at offset 1 in event 1: node 2, whose log ends at "
        "offset 3, does not have it (event 3)"
    ]


def test_a_node_that_is_behind_lacks_the_end() -> None:
    """It has not fetched it yet: a figure."""
    script = Script()
    script.send_many(3)
    script.replica(1, [0, 1, 2])
    script.replica(2, [0])
    assert script.found() == {}
    assert script.finding("lost-on-node").figures == {"values behind": 2}


def test_a_node_with_a_tail_that_will_be_cut_is_behind() -> None:
    """What it has there is not committed, and it knows nothing of what is."""
    script = Script()
    script.send_many(2)
    script.replica(1, [0, 1])
    script.replica(2, [0, None, None], high_watermark=1)
    assert script.found() == {}
    assert script.finding("lost-on-node").figures == {"values behind": 1}


def test_a_node_that_is_behind_though_all_are_said_to_be_in_sync() -> None:
    """Then it lost the end and nobody noticed."""
    script = Script()
    script.send_many(3)
    script.phase("heal")
    script.whole(2)
    script.replica(1, [0, 1, 2])
    script.replica(2, [0])
    assert script.found() == {"lost-on-node": 2}


def test_what_was_said_of_the_replicas_before_the_end_counts_for_nothing() -> None:
    """Faults came after it; the last word counts."""
    script = Script()
    script.send_many(3)
    script.whole(2)
    script.phase("heal")
    script.whole(1)
    script.replica(1, [0, 1, 2])
    script.replica(2, [0])
    assert script.found() == {}


def test_what_fewer_than_all_acknowledged_is_lost_lightly() -> None:
    """Gone from all replicas, or passed by readers: counted, and nothing is wrong."""
    script = Script()
    script.send([0], [0], acks=1)
    script.send([1], [0], acks=2)
    script.send([2], [0])
    script.replica(1, [2])
    assert script.found() == {}
    assert script.finding("lost-write").figures == {"lost lightly": 2}


def led_by_one(*leads: int) -> Script:
    """A value that only the leader acknowledged is gone; the nodes that said that they lead."""
    script = Script()
    for epoch, node in enumerate(leads):
        script.leads(node, epoch)
    script.send([0], [0], acks=1)
    script.send([2], [0])
    script.replica(1, [2])
    return script


def test_what_the_only_leader_acknowledged_is_promised() -> None:
    """It led from first to last, so nobody can have cut its log."""
    assert led_by_one(1).found() == {"lost-write": 1}
    assert led_by_one(1).finding("lost-write").figures == {"lost lightly": 0}


def test_what_a_leader_acknowledged_that_was_replaced_or_began_anew_is_not() -> None:
    """It is lost lightly; so it is where nobody said who leads."""
    for leads in ((1, 2), (1, 1), ()):
        assert led_by_one(*leads).found() == {}


def test_what_the_only_leader_acknowledged_must_be_in_the_last_reads() -> None:
    """As what all acknowledged."""
    script = Script()
    script.leads(1, 1)
    script.send([0], [0], acks=1)
    final(script)
    assert script.found() == {"unseen": 1}


def kept_by(count: int) -> Script:
    """Two nodes have a log at the end, when all replicas are said to be in sync."""
    script = Script()
    script.keeps(count)
    script.send_many(1)
    script.phase("heal")
    script.whole(2)
    script.replica(1, [0])
    script.replica(2, [0])
    return script


def test_a_node_without_its_log() -> None:
    """It is not behind: there is nothing, though it is said to be in sync."""
    assert kept_by(2).found() == {}
    assert kept_by(3).found() == {"lost-on-node": 1}
    assert kept_by(3).finding("lost-on-node").examples == [
        "key 'k': 3 nodes are to keep it, 1, 2 had a log of it"
    ]


def test_where_nothing_is_ever_deleted_a_log_that_begins_later_is_no_excuse() -> None:
    """All nodes have lost the beginning."""
    script = Script()
    script.keeps(2)
    script.send_many(3)
    script.replica(1, [2], log_start=2)
    script.replica(2, [2], log_start=2)
    assert script.found() == {"lost-write": 2, "replica-divergence": 4}


def test_what_was_deleted_is_not_lost() -> None:
    """One node deleted it; others may, too. What is behind is judged."""
    script = Script()
    script.send_many(4)
    script.assign("beginning")
    script.poll([(3, 3)])
    script.replica(1, [None, 3], log_start=2)
    script.replica(2, [None, 3], log_start=2)
    assert script.found() == {"lost-write": 1, "poll-skip": 1, "replica-divergence": 2}
    assert "value 2" in script.finding("lost-write").examples[0]


def test_where_something_was_deleted_and_nobody_knows_the_offset() -> None:
    """It may have been that."""
    script = Script()
    script.send([0], [None])
    script.send([1], [5])
    script.replica(1, [1], log_start=5)
    assert script.found() == {}


def final(script: Script, *, process: int = 9) -> None:
    script.phase("final")
    script.assign("beginning", process=process)


def test_the_last_reads_must_see_what_was_acknowledged() -> None:
    """Lost, or not reached: both are wrong at the end."""
    script = Script()
    script.send_many(3)
    final(script)
    script.poll([(0, 0), (1, 1)], process=9)
    assert script.found() == {"unseen": 1}
    assert script.finding("unseen").examples == [
        "key 'k', value 2, acknowledged at offset 2 in event 1: not in the last reads; "
        "before, it was never read"
    ]
    assert script.finding("unseen").figures == {"never read": 1, "unseen lightly": 0}


def test_what_was_read_before_must_be_there_at_the_end() -> None:
    """A read does not use it up."""
    script = Script()
    script.send_many(2)
    script.poll([(0, 0), (1, 1)])
    final(script)
    script.poll([(0, 0)], process=9)
    assert script.found() == {"unseen": 1}


def test_without_last_reads_nothing_is_unseen() -> None:
    """Nor if they began at the end, or on other keys."""
    script = Script()
    script.send_many(2)
    assert script.found() == {}
    script.phase("final")
    script.assign("end", process=9)
    script.begin(8, "assign", {"keys": ["other"], "from": "beginning"})
    script.end(8, "assign", {"keys": ["other"], "from": "beginning"})
    assert script.found() == {}


def test_an_assign_before_the_end_is_none_of_the_last() -> None:
    """What is read from the beginning at any time is not everything."""
    script = Script()
    script.send_many(2)
    script.assign("beginning")
    script.phase("final")
    script.poll([(0, 0)])
    assert script.found() == {}


def test_what_was_deleted_or_lightly_acknowledged_may_be_unseen() -> None:
    """The first is not judged, the second counted."""
    script = Script()
    script.send_many(2)
    script.send([2], [2], acks=1)
    script.send([3], [2])
    final(script)
    script.poll([(2, 3)], process=9)
    script.replica(1, [3], log_start=2)
    assert script.found() == {}
    assert script.finding("unseen").figures == {"never read": 0, "unseen lightly": 1}
