"""The course of the demonstration: write, kill, go on, restart, catch up, read, compare.

Decides nothing about what is right: `comparison.py` does, from what was acknowledged and read.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

import raftmq

from .comparison import compare
from .picture import TITLES, Picture, take_picture
from .reading import Reader, read_everything
from .result import Rate, Result
from .sending import Sending, seconds_until_acknowledged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raftmq import Client, ConsumedBatch
    from raftmq.local.cluster import LocalCluster

    from .comparison import ReadRecord
    from .data import Flight
    from .view import Bars, Quarters, View

TOPIC = "flights"
PARTITIONS = 12
REPLICAS = 3
MIN_IN_SYNC = 2
SECONDS_MAX = 60.0  # for each: reading along to the end, getting in sync, reading everything
LOOK_SECONDS = 0.1


class Read(Protocol):
    """Like `read_everything`."""

    async def __call__(
        self, client: Client, topic: str, ends: Mapping[int, int], *, seconds_max: float
    ) -> list[ReadRecord]: ...


class Outage(NamedTuple):
    """Attributes:
    partitions: that the killed broker led.
    began_at: in seconds of `perf_counter`.
    """

    broker_id: int
    partitions: tuple[int, ...]
    began_at: float


class Written(NamedTuple):
    """Attributes:
    counted: records, by the consumer that read along.
    """

    sending: Sending
    seconds: float
    outage: Outage
    counted: int


class Demo:
    """One run, on a cluster without topics."""

    def __init__(
        self,
        cluster: LocalCluster,
        flights: Sequence[Flight],
        view: View,
        *,
        read: Read = read_everything,
    ) -> None:
        self._cluster, self._flights, self._view = cluster, flights, view
        self._read_everything = read

    async def run(self) -> Result:
        async with raftmq.connect(self._cluster.bootstrap, client_id="flights-demo") as client:
            await self._make_topic(client)
            with self._view.progress(len(self._flights)) as progress:
                written = await self._write(client, progress)
            impaired = await self._wait_in_sync(client, written.outage.broker_id)
            began_at = perf_counter()
            read = await self._read_everything(
                client, TOPIC, await _ends(client), seconds_max=SECONDS_MAX
            )
            consumed = Rate(
                len(read), sum(len(one.key) + len(one.value) for one in read),
                perf_counter() - began_at,
            )  # fmt: skip
            self._view.say(f"a fresh consumer has read everything in {consumed.seconds:.1f} s")
            return self._result(written, impaired, read, consumed)

    def _result(
        self, written: Written, impaired: int, read: list[ReadRecord], consumed: Rate
    ) -> Result:
        sent = written.sending.sent
        pauses = _pauses(written.sending, written.outage)
        return Result(
            flights=len(self._flights),
            acknowledged=len(sent),
            read=len(read),
            counted=written.counted,
            impaired=impaired,
            leaderless_seconds=max(
                (pauses[one] for one in written.outage.partitions if one in pauses), default=None
            ),
            produced=self._produced(written.seconds),
            consumed=consumed,
            comparison=compare(sent, read),
        )

    # -- writing, and what happens meanwhile -----------------------------------------------

    async def _make_topic(self, client: Client) -> None:
        await client.admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            replication_factor=REPLICAS,
            config={"min.insync.replicas": MIN_IN_SYNC},
        )
        config = await client.admin.describe_config(TOPIC)
        self._view.say(
            f"topic {TOPIC}: {PARTITIONS} partitions, replication factor {REPLICAS},"
            f" min ISR {config['min.insync.replicas'].value},"
            f" durability {config['durability'].value}"
        )
        self._show(await self._picture(client))

    async def _write(self, client: Client, progress: Bars | Quarters) -> Written:
        """All of the flights, with a consumer that reads along."""
        self._view.say("sending with acks=all, keyed by aircraft, while a consumer counts")

        def on_batch(_batch: ConsumedBatch) -> None:
            progress.on_counted(reader.count)

        reader = Reader(client, TOPIC, on_batch=on_batch)
        async with client.producer(acks="all") as producer, trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            sending = Sending(
                producer, TOPIC, self._flights, PARTITIONS, on_progress=progress.on_acknowledged
            )
            began_at = perf_counter()
            async with trio.open_nursery() as work:
                work.start_soon(sending.run)
                outage = await self._disturb(client, sending)
            seconds = perf_counter() - began_at
            with trio.move_on_after(SECONDS_MAX):
                await reader.wait_reached(await _ends(client))
            nursery.cancel_scope.cancel()
        self._say_written(sending, seconds, outage, reader.count)
        return Written(sending, seconds, outage, reader.count)

    async def _disturb(self, client: Client, sending: Sending) -> Outage:
        """Kill halfway, restart at three quarters."""
        await sending.wait_acknowledged(len(self._flights) // 2)
        before = await self._picture(client)
        victim = before.partitions[0].leader
        assert victim is not None, "partition 0 has no leader although nothing has happened"
        outage = Outage(victim, before.leads(victim), perf_counter())
        await trio.to_thread.run_sync(self._cluster.kill, victim)
        also = ", and the metadata quorum" if before.controller_id == victim else ""
        led = _numbers(outage.partitions)
        self._view.say(f"kill -9 of broker {victim}: it led partitions {led}{also}")
        sending.let_finish()
        during = await self._wait_picture(client, lambda now: _has_replaced(now, victim))
        self._view.say("the others have taken over")
        self._show(during)
        await sending.wait_acknowledged(len(self._flights) * 3 // 4)
        self._view.say(f"broker {victim} is started again")
        self._cluster.start(victim)
        return outage

    def _say_written(self, sending: Sending, seconds: float, outage: Outage, counted: int) -> None:
        self._view.say(f"all sent and acknowledged in {seconds:.1f} s, the outage included")
        pauses = _pauses(sending, outage)
        led = [pauses[one] for one in outage.partitions if one in pauses]
        others = [pause for one, pause in pauses.items() if one not in outage.partitions]
        if led and others:
            self._view.say(
                f"from the kill to the next acknowledged batch: {max(led):.2f} s where broker"
                f" {outage.broker_id} led, {max(others):.2f} s where it followed"
            )
        self._view.say(f"the consumer that read along has counted {counted:,}")

    def _produced(self, seconds: float) -> Rate:
        byte_count = sum(len(flight.key) + len(flight.line) for flight in self._flights)
        return Rate(len(self._flights), byte_count, seconds)

    # -- how the cluster is ----------------------------------------------------------------

    async def _wait_in_sync(self, client: Client, restarted: int) -> int:
        """How many partitions are not, in the end."""
        with trio.move_on_after(SECONDS_MAX):
            await self._wait_picture(client, lambda now: not now.impaired_count)
        after = await self._picture(client)
        how = "has not caught up" if after.impaired_count else "has caught up"
        self._view.say(f"broker {restarted} {how}")
        self._show(after)
        return after.impaired_count

    async def _wait_picture(self, client: Client, is_it: Callable[[Picture], bool]) -> Picture:
        while True:
            picture = await self._picture(client)
            if is_it(picture):
                return picture
            await trio.sleep(LOOK_SECONDS)

    async def _picture(self, client: Client) -> Picture:
        return await take_picture(client, self._cluster, TOPIC)

    def _show(self, picture: Picture) -> None:
        self._view.show_table(TITLES, picture.rows)
        self._view.write(f"   in sync: {picture.in_sync_sets}")
        self._view.write()


def _has_replaced(now: Picture, victim: int) -> bool:
    return all(one.leader not in (None, victim) for one in now.partitions)


def _pauses(sending: Sending, outage: Outage) -> dict[int, float]:
    return seconds_until_acknowledged(sending.acknowledgements, since=outage.began_at)


def _numbers(partitions: Sequence[int]) -> str:
    return ", ".join(map(str, partitions))


async def _ends(client: Client) -> dict[int, int]:
    """One past the last committed record of each partition."""
    ends = await client.admin.offsets(TOPIC, "latest")
    return {partition: end or 0 for partition, end in ends.items()}
