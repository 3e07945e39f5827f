"""The comparison of the flights' demonstration, held against histories with one thing wrong."""

from __future__ import annotations

from examples.flights.comparison import Comparison, ReadRecord, SentRecord, compare

SENT = [SentRecord(0, offset, b"N1", b"flight %d" % offset) for offset in range(4)]
FIRST, SECOND, THIRD, FOURTH = SENT


def read(*records: SentRecord) -> list[ReadRecord]:
    """As they stand in the log if they stand there as acknowledged."""
    return [ReadRecord(*record[:4]) for record in records]


def at(offset: int, record: SentRecord) -> ReadRecord:
    """Another copy of it, somewhere else."""
    return ReadRecord(record.partition, offset, record.key, record.value)


def test_what_was_acknowledged_is_there() -> None:
    """Each record once, at its offset and in order: no fault."""
    found = compare(SENT, read(*SENT))
    assert found == Comparison()
    assert found.faults == {}


def test_nothing_is_compared_with_nothing() -> None:
    """No records at all: no fault, and no crash."""
    assert compare([], []) == Comparison()


def test_one_is_missing() -> None:
    """An acknowledged record in the middle was not read."""
    found = compare(SENT, read(FIRST, THIRD, FOURTH))
    assert found == Comparison(missing=1)
    assert found.faults == {"missing": 1}


def test_a_whole_key_is_missing() -> None:
    """Nothing of an aircraft was read, not even under another key."""
    other = SentRecord(0, 4, b"N2", b"flight 4")
    assert compare([*SENT, other], read(*SENT)) == Comparison(missing=1)


def test_one_is_doubled() -> None:
    """A record stands there twice."""
    assert compare(SENT, [*read(*SENT), at(4, SECOND)]) == Comparison(doubled=1)


def test_a_record_is_there_three_times() -> None:
    """Two copies too many."""
    assert compare([FIRST], [at(n, FIRST) for n in range(3)]) == Comparison(doubled=2)


def test_one_is_out_of_order() -> None:
    """A record comes behind later ones of its key: one would have to be moved."""
    records = [at(0, SECOND), at(1, THIRD), at(2, FIRST), at(3, FOURTH)]
    found = compare(SENT, records)
    assert (found.missing, found.doubled, found.out_of_order) == (0, 0, 1)


def test_no_copy_makes_up_for_a_wrong_order() -> None:
    """Both copies of a record stand behind a later one of its key."""
    sent = [FIRST._replace(offset=2), SECOND._replace(offset=0)]
    records = [at(0, SECOND), at(1, FIRST), at(2, FIRST)]
    assert compare(sent, records) == Comparison(doubled=1, out_of_order=1)


def test_other_keys_may_lie_between() -> None:
    """Two aircraft take turns, and the reader sees one of them earlier: order is within a key."""
    other = SentRecord(1, 0, b"N2", b"flight 9")
    assert compare([*SENT, other], read(other, *SENT)) == Comparison()


def test_one_was_never_acknowledged() -> None:
    """A record that nobody has sent, under a known key and under an unknown one."""
    strangers = [ReadRecord(0, 4, b"N1", b"flight 7"), ReadRecord(0, 5, b"N3", b"flight 8")]
    assert compare(SENT, [*read(*SENT), *strangers]) == Comparison(unknown=2)


def test_one_stands_elsewhere() -> None:
    """Its acknowledgement has told an offset at which it does not stand."""
    records = [*read(FIRST, SECOND, THIRD), at(17, FOURTH)]
    assert compare(SENT, records) == Comparison(misplaced=1)


def test_one_is_in_another_partition() -> None:
    """It is missing where it was acknowledged, and unknown where it was read."""
    records = [*read(FIRST, SECOND, THIRD), FOURTH._replace(partition=1)]
    moved = [ReadRecord(*record[:4]) for record in records]
    assert compare(SENT, moved) == Comparison(missing=1, unknown=1)
