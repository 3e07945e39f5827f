"""The small parts of the flights' demonstration: data, lanes, pauses, verdicts, what is shown."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from examples.flights.comparison import Comparison
from examples.flights.data import Flight, parse_flights
from examples.flights.picture import BrokerPicture, Picture
from examples.flights.result import Rate, Result
from examples.flights.sending import Acknowledgement, deal_out, seconds_until_acknowledged
from examples.flights.view import View
from raftmq.client.administration.results import PartitionDetails
from raftmq.client.producer.partitioners import HASHES, partitions_of

GOOD = Result(
    flights=10,
    acknowledged=10,
    read=10,
    counted=10,
    impaired=0,
    leaderless_seconds=0.5,
    produced=Rate(10, 1_000_000, 2.0),
    consumed=Rate(10, 1_000_000, 0.5),
    comparison=Comparison(),
)


def test_a_flight_is_a_line_under_its_aircraft() -> None:
    """The column is found by its name, also behind a field with a comma in it."""
    text = 'year,carrier,tailnum,dest\n2013,UA,N14228,IAH\n2013,"A, B",NA,MIA\n'
    assert list(parse_flights(text)) == [
        Flight(b"N14228", b"2013,UA,N14228,IAH"),
        Flight(b"NA", b'2013,"A, B",NA,MIA'),
    ]


def test_lanes_are_those_of_the_producer() -> None:
    """Each flight is in the lane that the producer's own partitioner would choose, in order."""
    flights = [Flight(b"N%d" % (n % 50), b"flight %d" % n) for n in range(500)]
    lanes = deal_out(flights, 12)
    assert sum(map(len, lanes)) == len(flights)
    for number, lane in enumerate(lanes):
        keys = [flight.key for flight in lane]
        assert set(partitions_of(keys, HASHES["crc32"], 12)) <= {number}
        assert lane == [flight for flight in flights if flight in set(lane)]


def test_a_pause_ends_with_a_batch_that_was_handed_in_later() -> None:
    """One was on its way at the kill, one was sent after it; another partition sent nothing."""
    acknowledgements = [
        Acknowledgement(0, 500, handed_in_at=9.0, acknowledged_at=9.5),
        Acknowledgement(0, 500, handed_in_at=9.9, acknowledged_at=10.1),
        Acknowledgement(0, 500, handed_in_at=10.1, acknowledged_at=12.0),
        Acknowledgement(0, 500, handed_in_at=12.0, acknowledged_at=12.1),
        Acknowledgement(1, 500, handed_in_at=9.9, acknowledged_at=11.0),
    ]
    assert seconds_until_acknowledged(acknowledgements, since=10.0) == {0: 2.0}


def test_a_good_result_says_so() -> None:
    """All flights are there once: no fault."""
    assert GOOD.faults == []
    assert GOOD.verdict == "All 10 flights are there, once, in order for each aircraft."
    assert str(GOOD.produced) == "5 records/s, 0.5 MB/s (10 records, 1.0 MB, 2.0 s)"


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (GOOD._replace(comparison=Comparison(missing=2)), "2 missing"),
        (GOOD._replace(comparison=Comparison(doubled=2)), "2 doubled"),
        (GOOD._replace(comparison=Comparison(out_of_order=2)), "2 out of order"),
        (GOOD._replace(comparison=Comparison(misplaced=2)), "2 misplaced"),
        (GOOD._replace(comparison=Comparison(unknown=2)), "2 unknown"),
        (GOOD._replace(acknowledged=8), "2 not acknowledged"),
        (GOOD._replace(counted=8), "2 more or fewer counted than read"),
        (GOOD._replace(impaired=2), "2 partitions that are not whole again"),
    ],
)
def test_every_fault_is_in_the_verdict(bad: Result, fault: str) -> None:
    """One thing is wrong, and the verdict names it with its number."""
    assert bad.faults == [fault]
    assert bad.verdict == f"This is not what was promised: {fault}."


def partition(number: int, leader: int | None, isr: tuple[int, ...]) -> PartitionDetails:
    """With replicas on three brokers."""
    return PartitionDetails(number, leader, 1, 1, (1, 2, 3), isr, 0, 0, is_recovering=False)


def test_a_picture_tells_who_leads_and_who_is_in_sync() -> None:
    """Broker 2 is dead: it leads nothing, and one partition still counts on it."""
    partitions = (partition(0, 1, (1, 3)), partition(1, 3, (3, 1)), partition(2, None, (2,)))
    brokers = (
        BrokerPicture(1, 71, "active", (0,), 2),
        BrokerPicture(2, None, "down", (), 1),
    )
    picture = Picture(1, brokers, partitions)
    assert picture.rows == [
        ("1, controller", "71", "active", "0", "2 of 3"),
        ("2", "none", "down", "none", "1 of 3"),
    ]
    assert picture.in_sync_sets == "brokers 1 3 for 2 partitions; brokers 2 for 1 partitions"
    assert picture.impaired_count == 3
    assert picture.leads(3) == (1,)


def test_without_a_terminal_there_is_a_line_for_each_quarter() -> None:
    """Eight steps of an eighth: four lines, each with what was counted by then."""
    written = StringIO()
    with View(Console(file=written)).progress(8) as progress:
        for count in range(1, 9):
            progress.on_counted(count - 1)
            progress.on_acknowledged(count)
    lines = [line.partition(" s  ")[2] for line in written.getvalue().splitlines()]
    assert lines == [
        f"{count} acknowledged, {count - 1} counted by the consumer" for count in (2, 4, 6, 8)
    ]


def test_on_a_terminal_there_are_bars() -> None:
    """The same on a terminal: both bars have come to their end."""
    written = StringIO()
    with View(Console(file=written, force_terminal=True)).progress(8) as progress:
        progress.on_counted(8)
        progress.on_acknowledged(8)
    last = written.getvalue().rpartition("acknowledged")[2]
    assert last.count("8/8") == 2
