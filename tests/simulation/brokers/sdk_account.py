"""The judge of one SDK producer: records handed in, outcomes reported, statistics.

What is true of the cluster, the ledger says. Promises: each record's outcome is reported once and
in time, a failure that was not reported to a caller is raised, and the statistics add up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.errors import RaftmqError
from tests.simulation.brokers.clients import Meaning
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.client.client import Client
    from raftmq.client.producer.batch import BatchMetadata, OnDelivery, RecordMetadata
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.producer import Producer
    from tests.simulation.brokers.ledger import Sent, Spot
    from tests.simulation.brokers.world import World

LATE_SECONDS_MAX = 0.05  # from an outcome until it is reported


@dataclass(eq=False)
class Parcel:
    """One record.

    Attributes:
        epochs: of the leaders, as the sender knew them, by partition.
        taken_at, delivery: nothing where the call itself waits for what becomes of the record.
        is_told: the program knows, or will be told, what becomes of it.
    """

    sent: Sent
    means: Meaning
    epochs: dict[int, int]
    taken_at: float = 0.0
    delivery: Delivery | None = None
    is_told: bool = False
    is_settled: bool = False


class Account:
    """Of the producer that `producer` is, in the client that `client` is."""

    def __init__(
        self, world: World, client: Client, producer: Producer, options: ProducerOptions, name: str
    ) -> None:
        self._world, self._cluster = world, client._cluster
        self._producer, self._options, self._name = producer, options, name
        self._parcels: list[Parcel] = []
        self._told: Counter[str] = Counter()
        self._lost = 0  # cancelled calls, whose records may still be sent
        self._lines = count()

    def new_line(self) -> str:
        """For calls one after the other."""
        return f"{self._name}.{next(self._lines)}"

    # Handing in

    def hand_in(
        self,
        spot: Spot,
        value: bytes,
        line: str,
        *,
        is_told: bool = False,
        after: Parcel | None = None,
    ) -> Parcel:
        """Before the call. `is_told`: by the call itself. `after`: see the ledger."""
        known = self._cluster.routes.topic(spot.topic)
        epochs = {n: place.leader_epoch for n, place in known.places.items()} if known else {}
        sent = self._world.ledger.on_hand_in(
            spot,
            value,
            acks=self._options.acks_number,
            line=line,
            partition_count=self._world.topics[spot.topic],
            after=after.sent if after else None,
        )
        means = Meaning(self._world, self._cluster, spot)
        parcel = Parcel(sent, means, epochs, is_told=is_told)
        self._parcels.append(parcel)
        return parcel

    def taken(self, parcel: Parcel, delivery: Delivery) -> None:
        parcel.delivery, parcel.taken_at = delivery, trio.current_time()

    def refuse(self, parcel: Parcel, why: str) -> None:
        """It was not taken, for certain."""
        parcel.is_settled = True
        self._told["refused"] += 1
        self._world.ledger.on_failed(parcel.sent, why)

    def lose(self, parcels: Iterable[Parcel]) -> None:
        """Their caller was cancelled: they may still be sent."""
        self._lost += 1
        for parcel in parcels:
            self._forget(parcel)

    def _forget(self, parcel: Parcel) -> None:
        parcel.is_settled = True
        self._told["lost"] += 1
        self._world.ledger.on_unknown(parcel.sent, is_stray=not parcel.means.this_life)

    # Being told

    def on_delivery(self, parcel: Parcel) -> OnDelivery:
        """To be called once."""
        parcel.is_told = True
        calls = count()

        def on_delivery(error: RaftmqError | None, metadata: RecordMetadata | None) -> None:
            demand(next(calls) == 0, f"{self._name}: told twice of {parcel.sent}")
            demand((error is None) != (metadata is None), f"{self._name}: {error!r}, {metadata}")
            self._judge_time(parcel)
            assert parcel.delivery is not None
            self._settle(parcel, error or metadata, is_repeated=_is_repeated(parcel.delivery))

        return on_delivery

    async def wait(self, parcel: Parcel) -> None:
        """As a program awaits what becomes of it."""
        assert parcel.delivery is not None
        parcel.is_told = True
        told: RecordMetadata | RaftmqError
        try:
            told = await parcel.delivery
        except RaftmqError as error:
            told = error
        except BaseException:
            parcel.is_told = False
            raise
        self._judge_time(parcel)
        self._settle(parcel, told, is_repeated=_is_repeated(parcel.delivery))

    def on_sent(
        self, parcel: Parcel, told: RecordMetadata | RaftmqError, repeated_before: int
    ) -> None:
        """By a call that has waited; whether a record stands twice, only the statistics say."""
        is_repeated = self._producer.statistics.repeated_records > repeated_before
        self._settle(parcel, told, is_repeated=is_repeated)

    def on_sent_many(
        self, parcels: list[Parcel], told: list[BatchMetadata] | RaftmqError, places: list[int]
    ) -> None:
        """`places`: the partitions. If the call has failed, its records are not known."""
        if isinstance(told, RaftmqError):
            for parcel in parcels:
                self._forget(parcel)
            return
        total = sum(run.record_count for run in told)
        demand(total == len(parcels), f"{self._name}: {len(parcels)} were sent, {total} are told")
        offsets = {
            place: [
                (offset, run.is_repeated)
                for run in told
                if run.partition == place
                for offset in range(run.base_offset, run.end_offset)
            ]
            for place in set(places)
        }
        for parcel, place in zip(parcels, places, strict=True):
            offset, is_repeated = offsets[place].pop(0)
            self._deliver(parcel, place, offset, is_repeated=is_repeated)

    def on_flushed(self, error: RaftmqError | None, since: float) -> None:
        """The producer was flushed, or closed after all was delivered. Failures that were not
        reported to a caller must be raised now.
        """
        self._judge_duration(since)
        silent = [one for one in self._open() if not one.is_told]
        failed = [one.sent for one in silent if isinstance(self._look(one), RaftmqError)]
        demand(error is not None or not failed, f"{self._name}: {failed} have failed in silence")
        demand(
            error is None or bool(failed) or self._lost > 0,
            f"{self._name}: {error!r}, though nothing has failed of which nobody was told",
        )

    def on_closed(self) -> None:
        """However that was, no record is left without an outcome."""
        for parcel in self._open():
            demand(not parcel.is_told, f"{self._name}: nobody was told of {parcel.sent}")
            self._look(parcel)
        self._judge_statistics()

    def _open(self) -> list[Parcel]:
        self._parcels = [parcel for parcel in self._parcels if not parcel.is_settled]
        return self._parcels

    def _look(self, parcel: Parcel) -> RecordMetadata | RaftmqError:
        assert parcel.delivery is not None
        demand(parcel.delivery.is_done, f"{self._name}: nobody knows of {parcel.sent}")
        try:
            told: RecordMetadata | RaftmqError = parcel.delivery.result()
        except RaftmqError as error:
            told = error
        self._settle(parcel, told, is_repeated=_is_repeated(parcel.delivery))
        return told

    def _settle(
        self, parcel: Parcel, told: RecordMetadata | RaftmqError | None, *, is_repeated: bool
    ) -> None:
        assert told is not None
        if not isinstance(told, RaftmqError):
            self._deliver(parcel, told.partition, told.offset, is_repeated=is_repeated)
            return
        ledger, sent = self._world.ledger, parcel.sent
        parcel.is_settled = True
        self._told["failed"] += 1
        self._trace(sent, type(told).__name__)
        if told.definite:
            ledger.on_failed(sent, repr(told))
        else:
            self._told["unknown"] += 1
            is_stray = not parcel.means.this_life
            ledger.on_unknown(sent, is_stray=is_stray, why=repr(told))

    def _deliver(self, parcel: Parcel, partition: int, offset: int, *, is_repeated: bool) -> None:
        ledger, sent = self._world.ledger, parcel.sent
        parcel.is_settled = True
        self._told["delivered"] += 1
        self._trace(sent, f"at {partition} {offset}{' again' if is_repeated else ''}")
        if not parcel.means.this_life:
            ledger.on_unknown(sent, is_stray=True)
            return
        epoch = parcel.epochs.get(partition, -1)
        ledger.on_delivered(sent, partition, offset, is_repeated=is_repeated, leader_epoch=epoch)

    def _trace(self, sent: Sent, what: str) -> None:
        value = sent.values[0].rstrip(b".").decode()
        self._world.trace(f"{self._name} {sent.spot} {value} acks={sent.acks} {what}")

    # Judging

    def _judge_time(self, parcel: Parcel) -> None:
        self._judge_duration(parcel.taken_at)

    def _judge_duration(self, since: float) -> None:
        seconds = trio.current_time() - since
        most = self._options.delivery_seconds + LATE_SECONDS_MAX
        demand(seconds <= most, f"{self._name}: told after {seconds:.2f} s, {self._options}")

    def _judge_statistics(self) -> None:
        """The number of records of lost calls is unknown."""
        told, statistics = self._told, self._producer.statistics
        known = {"records": told["delivered"], "failed_records": told["failed"]}
        found = {name: getattr(statistics, name) for name in known}
        fits = all(0 <= found[name] - known[name] <= told["lost"] for name in known)
        fits = fits and 0 <= statistics.unknown_records - told["unknown"] <= told["lost"]
        demand(fits, f"{self._name}: told {dict(told)}, statistics {vars(statistics)}")


def _is_repeated(delivery: Delivery) -> bool:
    """A record's metadata does not say; its batch does."""
    outcome = delivery._batch.outcome if delivery._batch is not None else None
    return outcome is not None and not isinstance(outcome, RaftmqError) and outcome.is_repeated
