"""What nodes say and hold: logs that agree, high watermarks that rise, one leader at a time."""

from __future__ import annotations

import pytest

from tests.jepsen_like.checkers.script import Script


def two_logs() -> Script:
    """Node 1 has two batches; node 2 is for the test to say."""
    script = Script()
    script.send([5, 6, 7])
    script.dump(1, [[0, 1, 10, [5, 6]], [2, 1, 11, [7]]], 3)
    return script


def test_logs_that_are_alike() -> None:
    """Byte for byte, as far as both count as committed."""
    script = two_logs()
    script.dump(2, [[0, 1, 10, [5, 6]]], 2)
    assert script.found() == {}
    assert script.finding("replica-divergence").figures == {"batches compared": 3}


@pytest.mark.parametrize(
    "batch",
    [[0, 2, 10, [5, 6]], [0, 1, 99, [5, 6]], [0, 1, 10, [5]], [0, 1, 10, [6, 5]]],
    ids=["epoch", "CRC", "length", "values"],
)
def test_a_batch_that_differs(batch: list[object]) -> None:
    """In anything that belongs to it."""
    script = two_logs()
    script.dump(2, [batch], 2)
    assert script.found()["replica-divergence"] >= 1


def test_a_batch_that_is_missing() -> None:
    """Below both high watermarks; the sentence names nodes, offsets, and what they hold."""
    script = two_logs()
    script.dump(2, [[2, 1, 11, [7]]], 3)
    assert script.finding("replica-divergence").examples == [
        "key 'k': node 1 (event 2) holds the batch at offset 0 of epoch 1, CRC 10, "
        "values [5, 6], node 2 (event 3) holds no batch that begins there"
    ]


def test_what_is_not_committed_may_differ() -> None:
    """Above the smaller of the two high watermarks."""
    script = two_logs()
    script.dump(2, [[0, 1, 10, [5, 6]], [2, 2, 99, [None]]], 2)
    assert script.found() == {}


def test_what_one_node_deleted_is_not_compared() -> None:
    """Nor the batch that is half deleted."""
    script = two_logs()
    script.dump(2, [[0, 1, 10, [5, 6]], [2, 1, 11, [7]]], 3, 1)
    assert script.found() == {}


def whole() -> Script:
    """All replicas are in sync, and no client has read anything."""
    script = Script()
    script.send([5, 6], acks=1)
    script.phase("heal")
    script.whole(2)
    return script


def test_replicas_in_sync_are_compared_to_their_ends() -> None:
    """A node that has not noted how far it knows of what is committed hides nothing by that."""
    script = whole()
    script.replica(1, [5, 6])
    script.replica(2, [6, 5], high_watermark=0)
    assert script.found()["replica-divergence"] == 2
    assert script.finding("replica-divergence").figures == {"batches compared": 4}


def test_what_was_compared_is_what_is_counted() -> None:
    """Of a node that knows of nothing that is committed, nothing was."""
    script = two_logs()
    script.dump(2, [[0, 1, 99, [5, 6]]], 0)
    assert script.finding("replica-divergence").figures == {"batches compared": 2}


def test_what_was_read_stands_there_on_each_replica_in_sync() -> None:
    """Whatever they say of their high watermarks: what was polled is committed."""
    script = whole()
    script.poll([(0, 5), (1, 6)])
    for node in (1, 2):
        script.replica(node, [5, None], high_watermark=1)
    assert script.found()["replica-divergence"] == 2


def test_no_byte_is_damaged_where_all_are_in_sync() -> None:
    """A replica whose log cannot be read is none."""
    for script, count in ((whole(), 1), (two_logs(), 0)):
        script.dump(1, [[0, 1, 10, [5, 6]]], 2, damage=["0.log, byte 70: bad checksum"])
        assert script.finding("replica-divergence").count == count


def test_where_nothing_is_deleted_every_log_begins_at_the_beginning() -> None:
    """A start further on has lost what is before it, also what nobody has promised."""
    script = whole()
    script.keeps(2)
    script.replica(1, [5, 6])
    script.replica(2, [6], log_start=1)
    assert script.found() == {"replica-divergence": 1}


def test_epochs_never_fall() -> None:
    """An old leader wrote behind a new one."""
    script = Script()
    script.send([5, 6], [0, 1])
    script.replica(1, [5, 6], epochs=[2, 1])
    assert script.found() == {"replica-divergence": 1}


def test_batches_do_not_overlap() -> None:
    """Nor does one begin where another one begins."""
    script = Script()
    script.send([5, 6])
    script.dump(1, [[0, 1, 10, [5, 6]], [1, 1, 11, [None]]], 0)
    script.dump(2, [[0, 1, 10, []], [0, 1, 10, [5, 6]]], 0)
    assert script.found() == {"replica-divergence": 2}


def test_what_was_read_is_what_stands_there() -> None:
    """On each replica that counts it as committed."""
    script = Script()
    script.send([5, 6])
    script.poll([(0, 5)])
    script.replica(1, [5])
    script.replica(2, [None])
    script.replica(3, [6], high_watermark=0)
    assert script.found() == {"replica-divergence": 2, "lost-on-node": 1}
    assert script.finding("replica-divergence").examples[1] == (
        "key 'k', offset 0, value 5 (read in event 3, kept by node 1 in event 4): "
        "node 2 holds nothing there (event 5)"
    )


def test_what_was_acknowledged_is_what_stands_there() -> None:
    """At the offset that its client was told."""
    script = Script()
    script.send([5], [0])
    script.replica(1, [None, 5])
    assert "replica-divergence" in script.found()


def test_what_was_read_is_before_the_end_of_some_log() -> None:
    """A read of what was committed nowhere."""
    script = Script()
    script.send([5, 6])
    script.poll([(0, 5), (1, 6)])
    script.replica(1, [5])
    script.replica(2, [5])
    finding = script.finding("replica-divergence")
    assert finding.examples == [
        "key 'k', offset 1, value 6 (read in event 3): every log ends before it, the longest at 1"
    ]


def test_a_reader_is_never_told_less() -> None:
    """By its polls, whoever answers them."""
    script = Script()
    script.poll_watermark(5)
    script.poll_watermark(5)
    script.poll_watermark(4)
    assert script.found() == {"high-watermark-back": 1}
    assert script.finding("high-watermark-back").examples == [
        "key 'k': process 1 was told 5 in event 3 and 4 in event 5"
    ]


def test_readers_may_be_told_different_things() -> None:
    """A poll does not say by which leader, so only its own process can compare."""
    script = Script()
    script.poll_watermark(5, process=1)
    script.poll_watermark(4, process=2)
    assert script.found() == {}


def test_the_next_consumer_of_a_process_may_be_told_less() -> None:
    """By a leader that has just begun, and has not heard from its followers yet."""
    for start in ("beginning", "end"):
        script = Script()
        script.poll_watermark(5)
        script.assign(start)
        script.poll_watermark(4)
        assert script.found() == {}
        script.poll_watermark(3)
        assert script.found() == {"high-watermark-back": 1}


def test_a_leader_never_says_less() -> None:
    """In one epoch, whoever asks."""
    script = Script()
    script.watermark(1, 5, process=1)
    script.watermark(1, 4, process=2)
    assert script.found() == {"high-watermark-back": 1}


def test_a_new_leader_never_says_less() -> None:
    """Nor does the one after it, when the first was long gone."""
    script = Script()
    script.watermark(1, 5)
    script.watermark(3, 6)
    script.watermark(2, 4)
    script.watermark(4, 5)
    assert script.found() == {"high-watermark-back": 2}


def test_an_old_leader_may_lag() -> None:
    """It does not know yet that it leads no longer."""
    script = Script()
    script.watermark(2, 9)
    script.watermark(1, 5)
    script.watermark(1, 5)
    assert script.found() == {}


def test_answers_at_the_same_time_have_no_order() -> None:
    """One that was asked for before the other one came may be older."""
    script = Script()
    script.begin(2, "watermark", {"key": "k"})
    script.watermark(1, 5, process=1)
    script.end_watermark(1, 4, process=2)
    assert script.found() == {}


def test_a_high_watermark_beyond_all_logs() -> None:
    """As a leader said it, or a poll: what is committed does not go away, though nobody read it."""
    for said in (lambda script: script.watermark(1, 2), lambda script: script.poll_watermark(2)):
        script = Script()
        script.send([5, 6], acks=1)
        said(script)
        script.replica(1, [5])
        script.replica(2, [5])
        assert script.found() == {"high-watermark-back": 1}
        assert script.finding("high-watermark-back").examples == [
            "key 'k': event 3 said 2, but every log ends before it, the longest at 1"
        ]


def test_one_node_leads_in_an_epoch() -> None:
    """Two say so: the sentence names them."""
    script = Script()
    script.leads(1, 7)
    script.leads(2, 7)
    assert script.found() == {"two-leaders": 1}
    assert script.finding("two-leaders").examples == [
        "key 'k', epoch 7: node 1 (event 0), node 2 (event 1) said that they lead"
    ]


def test_a_node_may_say_again_that_it_leads() -> None:
    """And others lead in other epochs."""
    script = Script()
    script.leads(1, 7)
    script.leads(1, 7)
    script.leads(2, 8)
    assert script.found() == {}
