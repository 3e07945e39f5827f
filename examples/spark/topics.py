"""What plain clients do: the flights into their topic, and the results out of theirs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .totals import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.flights.data import Flight
    from raftmq.sync import Client

FLIGHTS, RESULTS = "flights", "delays"
PARTITIONS = {FLIGHTS: 4, RESULTS: 2}
# Spark gives out an hour once it has seen a flight that is later by a week. After the last flights
# there is none, so this one has to do.
CLOSING_KEY = b"closing"
CLOSING_LINE = b"2014,12,31,0,0,0,0,0,0,ZZ,0,ZZ,ZZZ,ZZZ,0,0,0,0,2014-12-31T00:00:00Z"
WAIT_SECONDS = 0.1  # where a log ends there may be a fence, which no batch comes of


def make_topics(client: Client) -> None:
    for name, partitions in PARTITIONS.items():
        client.admin.create_topic(name, partitions=partitions, replication_factor=3)


def send_flights(client: Client, flights: Sequence[Flight], *, progress: bool) -> int:
    """In their order, keyed by aircraft, and one at the end that never flew: how many records."""
    with client.producer(acks="all") as producer:
        producer.send_columns(
            FLIGHTS,
            keys=[flight.key for flight in flights],
            values=[flight.line for flight in flights],
            progress=progress,
        )
        producer.send(FLIGHTS, CLOSING_LINE, key=CLOSING_KEY)
    return len(flights) + 1


def read_results(client: Client) -> list[Row]:
    """All that stand in the topic now."""
    found: list[bytes | None] = []
    with client.consumer(RESULTS, start="earliest") as consumer:
        ends = consumer.end_offsets()
        while any((consumer.position(*key) or 0) < end for key, end in ends.items()):
            batch = next(consumer.batches(timeout=WAIT_SECONDS), None)
            found += batch.values if batch else ()
    return [Row(**json.loads(value)) for value in found if value is not None]
