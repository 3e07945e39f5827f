"""`exactly_once`: each record that is read has its result once, whatever fails (A11.3, A12.5)."""

from __future__ import annotations

import copy
import json
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trio

import raftmq
from raftmq.client.client import Client
from raftmq.client.consumer.record import PartitionOwnership
from raftmq.client.dead_letters.letters import read_letter
from raftmq.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    InvalidTransaction,
    OutcomeUnknown,
    RaftmqError,
    TransactionAborted,
)
from raftmq.model import AbortReason
from raftmq.wire.batch.records import RecordBatch
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.administration.bureau import Bureau
from tests.unit.client.consumer.reading import append_control
from tests.unit.client.group.grouped import GROUP, grouped, until
from tests.unit.client.producer.shell import NOW_MS
from tests.unit.client.transactions.coordinator import Coordinator, committed_in
from tests.unit.client.world import done_and_lost, done_and_refused, refused, silent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.consumer.batch import AnyBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.rpc.reply import Reply
    from tests.unit.client.group.grouped import Grouped
    from tests.unit.client.world import Turn, World

COUNT = 40
INPUT = [f"{number:02}" for number in range(COUNT)]


class Plant(NamedTuple):
    """Topic "orders" with two partitions, that is read; "results", that is written."""

    here: Grouped
    coordinator: Coordinator
    mq: Client
    consumer: Consumer
    bureau: Bureau

    def results(self) -> list[str]:
        return committed_in(self.coordinator, self.here.world, topic="results")

    async def transform(self, batch: AnyBatch, tx: Any) -> None:
        for value in batch.values:
            await tx.enqueue("results", value)

    async def fail_at_ten(self, batch: AnyBatch, tx: Any) -> None:
        await self.transform(batch, tx)
        if b"10" in batch.values:
            raise ValueError("ten")

    @asynccontextmanager
    async def running(self, transform: Any = None, **options: Any) -> AsyncIterator[None]:
        """Until the block ends."""
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await raftmq.exactly_once(
                    self.mq, self.consumer, transform or self.transform, **options
                )

            nursery.start_soon(run)
            yield
            nursery.cancel_scope.cancel()

    async def is_refused(self) -> None:
        """Its consumer cannot go on."""
        with (
            pytest.raises(InvalidTransaction, match="open the consumer anew") as caught,
            trio.fail_after(9),
        ):
            await raftmq.exactly_once(self.mq, self.consumer, self.transform)
        assert caught.value.definite

    async def all_there(self, count: int = COUNT) -> None:
        await until(lambda: len(self.results()) >= count)
        await trio.sleep(1)  # what comes twice comes now
        assert sorted(self.results()) == INPUT[:count]


@asynccontextmanager
async def plant(**options: Any) -> AsyncIterator[Plant]:
    """`options`: more of the consumer."""
    coordinator = Coordinator()
    bureaus: list[Bureau] = []

    def prepare(world: World) -> None:
        bureaus.append(Bureau(world))
        coordinator.install(world)

    async with grouped(2, prepare=prepare, results=1) as here:
        addresses = [broker.address for broker in here.world.brokers.values()]
        network = ClientNetwork(here.world.network.node("program"))
        client = Client(addresses, network=network, random=Random(1), now_ms=lambda: NOW_MS)
        given = {"delivery": "exactly_once", **options}
        async with client, here.consumer("program", **given) as consumer:
            yield Plant(here, coordinator, client, consumer, bureaus[0])


def feed(plant: Plant, start: int = 0, end: int = COUNT) -> None:
    for number in range(start, end):
        plant.here.append(number % 2, INPUT[number])


async def test_all_goes_well(autojump_clock: MockClock) -> None:
    """Offsets and results in one decision each; what comes slowly makes many."""
    async with plant() as here, here.running():
        for start in range(0, COUNT, 10):
            feed(here, start, start + 10)
            await trio.sleep(2)
        await here.all_there()
        assert here.coordinator.offsets == {GROUP: {0: COUNT // 2, 1: COUNT // 2}}
        assert 4 <= len(here.coordinator.commits) <= 10
        assert len(here.coordinator.rows) == 2


async def test_order(autojump_clock: MockClock) -> None:
    """Two producers take turns, and results stand in the order of each partition's input."""
    async with plant() as here, here.running(max_records=3):
        feed(here)
        await here.all_there()
        for parity in range(2):
            assert [one for one in here.results() if int(one) % 2 == parity] == INPUT[parity::2]


async def test_aborted_by_others(autojump_clock: MockClock) -> None:
    """Now and then one is ended by an operator, or by time, while it is on: it is done again."""
    random = Random(3)
    async with plant() as here:

        async def transform(batch: AnyBatch, tx: Any) -> None:
            await here.transform(batch, tx)
            for row in here.coordinator.rows.values():
                if random.random() < 0.2:
                    here.coordinator.decide(row, is_committed=False, reason=AbortReason.OPERATOR)

        async with here.running(transform, max_records=3):
            feed(here)
            await here.all_there()
        assert not all(here.coordinator.decided.values())


async def test_aborted_by_others_while_it_is_filled(autojump_clock: MockClock) -> None:
    """Seen in the refusal of a record, whose broker does not know why: it is done again, too."""
    async with plant() as here:
        is_first = True

        async def transform(batch: AnyBatch, tx: Any) -> None:
            nonlocal is_first
            await here.transform(batch, tx)
            if is_first:
                is_first = False
                await tx.send("results", "in vain")
                for row in here.coordinator.rows.values():
                    here.coordinator.decide(row, is_committed=False, reason=AbortReason.OPERATOR)
                produces = here.here.world.brokers[1].produces
                produces += [refused(ErrorCode.TRANSACTION_ABORTABLE)]
                await tx.send("results", "refused")

        async with here.running(transform, max_records=3):
            feed(here)
            await here.all_there()


async def test_requests_fail(autojump_clock: MockClock) -> None:
    """Records are refused, answers to ends are lost, groups refuse."""
    random = Random(5)
    async with plant() as here, here.running(max_records=3):

        def refuse_group(turn: Turn) -> Reply:
            """Which keeps no abort from being carried out."""
            is_commit = here.coordinator.asked[-1].is_commit
            return turn.refuse(ErrorCode.ILLEGAL_GENERATION) if is_commit else turn.carry_out()

        ends = [
            done_and_lost,
            refuse_group,
            refused(ErrorCode.COORDINATOR_NOT_AVAILABLE),
            lambda turn: turn.carry_out(),
        ]
        produces = [
            done_and_lost,
            refused(ErrorCode.CONCURRENT_TRANSACTIONS),
            refused(ErrorCode.MESSAGE_TOO_LARGE),
            *[lambda turn: turn.carry_out()] * 3,
        ]
        here.coordinator.ends += random.choices(ends, k=30)
        here.here.world.brokers[1].produces += random.choices(produces, k=40)
        feed(here)
        await here.all_there()


@pytest.mark.parametrize("code", [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.PRODUCER_FENCED])
async def test_nobody_knows_any_more(autojump_clock: MockClock, code: ErrorCode) -> None:
    """A commit was carried out, and nobody can say so: to read its records again would double
    their results, so it ends. Who begins anew goes on from the group's offsets."""
    async with plant() as here:
        feed(here)
        here.coordinator.ends += [done_and_refused(ErrorCode.REQUEST_TIMED_OUT), refused(code)]
        with pytest.raises(OutcomeUnknown), trio.fail_after(300):
            await raftmq.exactly_once(here.mq, here.consumer, here.transform, max_records=3)
        committed = here.results()
        assert len(committed) == 3
        assert sum(here.coordinator.offsets[GROUP].values()) == 3
        await here.is_refused()


# -- The same consumer once more ------------------------------------------------------------------


async def test_cancelled_with_records_in_hand(autojump_clock: MockClock) -> None:
    """Reading has passed over them: what is committed next would leave them without a result. A
    consumer that is opened anew gets them."""
    options = {"group": "other", "delivery": "exactly_once"}
    async with plant() as here:
        await here.here.give(2, "other")
        feed(here)

        async def transform(batch: AnyBatch, tx: Any) -> None:
            await here.transform(batch, tx)
            await trio.sleep_forever()

        async with here.here.consumer("old", **options) as consumer:
            old = here._replace(consumer=consumer)
            with trio.move_on_after(20):
                await raftmq.exactly_once(old.mq, old.consumer, transform)
            await old.is_refused()
            async with here.mq.producer(transactions=True) as producer:
                with pytest.raises(InvalidTransaction, match="open the consumer anew"):
                    async with producer.transaction() as tx:
                        tx.commit_offsets(consumer)
        async with (
            here.here.consumer("new", **options) as consumer,
            here._replace(consumer=consumer).running(),
        ):
            await here.all_there()


@pytest.mark.parametrize("is_rest", [False, True])
async def test_cancelled_in_a_commit(autojump_clock: MockClock, is_rest: bool) -> None:
    """It may be carried out later: of records, or of what was passed over behind them."""
    async with plant() as here:
        async with here.running():
            feed(here, 0, 10)
            await here.all_there(10)
        asked = len(here.coordinator.commits)
        here.coordinator.ends += [silent] * 99
        if is_rest:
            for partition in range(2):
                append_control(here.here.world, partition, topic="orders")
        else:
            feed(here, 10, 12)
        with trio.move_on_after(6):
            await raftmq.exactly_once(here.mq, here.consumer, here.transform)
        assert len(here.coordinator.commits) > asked
        await here.is_refused()


async def test_cancelled_while_it_waits_for_records(autojump_clock: MockClock) -> None:
    """All that was handed out is committed: it goes on with the same consumer."""
    async with plant() as here:
        for start in range(0, COUNT, 10):
            async with here.running():
                feed(here, start, start + 10)
                await here.all_there(start + 10)


async def test_after_an_error_of_the_program(autojump_clock: MockClock) -> None:
    """What it had in hand is read again with the same consumer."""
    async with plant() as here:
        feed(here)
        with pytest.raises(ValueError, match="ten"):
            await raftmq.exactly_once(here.mq, here.consumer, here.fail_at_ten, max_records=3)
        async with here.running():
            await here.all_there()


# -- What transform does --------------------------------------------------------------------------


async def test_transform_fails_now_and_then(autojump_clock: MockClock) -> None:
    random, failed = Random(7), list[int]()
    async with plant() as here:

        async def transform(batch: AnyBatch, tx: Any) -> None:
            await here.transform(batch, tx)
            if random.random() < 0.3:
                failed.append(batch.base_offset)
                raise ValueError

        async with here.running(transform, max_records=3, attempts=100):
            feed(here)
            await here.all_there()
        assert failed


async def test_a_batch_that_always_fails(autojump_clock: MockClock) -> None:
    """After three times the error is raised, and says where; what came before it is committed."""
    async with plant() as here:
        tries = list[int]()

        async def transform(batch: AnyBatch, tx: Any) -> None:
            if b"10" in batch.values:
                tries.append(batch.base_offset)
            await here.fail_at_ten(batch, tx)

        feed(here)
        with pytest.raises(ValueError, match="ten") as caught:
            await raftmq.exactly_once(here.mq, here.consumer, transform, max_records=1)
        assert len(tries) == 3
        assert "orders-0, offsets 5 through 5: transform has failed 3 times" in str(
            caught.value.__notes__
        )
        assert "10" not in here.results()
        assert {"00", "02", "04", "06", "08"} <= {*here.results()}


async def test_poison(autojump_clock: MockClock) -> None:
    """It goes elsewhere, in a transaction with its offsets; all others have their result."""
    async with plant() as here:

        async def bury(batch: AnyBatch, tx: Any) -> None:
            for value in batch.values:
                await tx.send("results", b"dead " + value)

        async with here.running(here.fail_at_ten, max_records=1, on_poison=bury):
            feed(here)
            await until(lambda: len(here.results()) >= COUNT)
            await trio.sleep(1)
        assert sorted(here.results()) == sorted([*set(INPUT) - {"10"}, "dead 10"])


DEAD = f"__dead.{GROUP}"


@pytest.mark.parametrize("max_records", [1, 7, 10_000])
async def test_dead_letters(autojump_clock: MockClock, max_records: int) -> None:
    """Records that fail by themselves are set aside, and none of those beside them."""
    async with plant() as here:
        tries: list[int] = []

        async def transform(batch: AnyBatch, tx: Any) -> None:
            await here.transform(batch, tx)
            if {b"07", b"10", b"12"} & {*batch.values}:
                tries.append(len(batch))
                raise ValueError(f"one of {len(batch)}")

        async with here.running(transform, max_records=max_records, on_poison="dead_letter"):
            feed(here)
            await until(lambda: len(here.results()) >= COUNT - 3)
            await until(lambda: here.coordinator.offsets == {GROUP: {0: 20, 1: 20}})
        assert sorted(here.results()) == sorted({*INPUT} - {"07", "10", "12"})
        assert sorted(committed_in(here.coordinator, here.here.world, topic=DEAD)) == [
            "07", "10", "12",
        ]  # fmt: skip
        assert tries.count(1) == 9, "each was tried three times alone"
        assert len(tries) <= 9 + 3 * 12  # halves, not all of them one by one
        partition = here.here.world.topics[DEAD].partitions[0]
        for _, _, data in partition.batches:
            for headers in RecordBatch.decode(data).headers:
                letter = read_letter(headers)
                assert (letter.attempts, letter.error) == (3, "ValueError: one of 1")
                assert letter.group == GROUP


async def test_dead_letters_of_transactions_that_are_aborted(autojump_clock: MockClock) -> None:
    """Nothing stands there of those: a record is set aside once, and its offset with it."""
    random = Random(7)
    async with plant() as here:

        async def transform(batch: AnyBatch, tx: Any) -> None:
            await here.transform(batch, tx)
            for row in here.coordinator.rows.values():
                if random.random() < 0.2:
                    here.coordinator.decide(row, is_committed=False, reason=AbortReason.OPERATOR)
            if {b"07", b"10", b"12"} & {*batch.values}:
                raise ValueError("no")

        here.coordinator.ends += [
            refused(ErrorCode.COORDINATOR_NOT_AVAILABLE) if random.random() < 0.3 else _carry_out
            for _ in range(30)
        ]
        async with here.running(transform, max_records=3, on_poison="dead_letter"):
            feed(here)
            await until(lambda: here.coordinator.offsets == {GROUP: {0: 20, 1: 20}}, seconds=600)
        assert sorted(here.results()) == sorted({*INPUT} - {"07", "10", "12"})
        dead = committed_in(here.coordinator, here.here.world, topic=DEAD)
        assert sorted(dead) == ["07", "10", "12"]
        assert not all(here.coordinator.decided.values())


def _carry_out(turn: Turn) -> Reply:
    return turn.carry_out()


async def test_reject_in_a_transaction(autojump_clock: MockClock) -> None:
    """By hand: it counts with the offset, or not at all, and serializers leave it alone."""
    async with plant() as here:
        feed(here, 0, 4)
        async with here.mq.producer(transactions=True, value_serializer=json.dumps) as producer:
            first = await anext(here.consumer)
            with suppress(ZeroDivisionError):
                async with producer.transaction() as tx:
                    told = await tx.reject(first, ValueError("no"))
                    assert (told.topic, told.offset) == (DEAD, 0)
                    tx.commit_offsets(here.consumer)
                    raise ZeroDivisionError
            assert committed_in(here.coordinator, here.here.world, topic=DEAD) == []
            assert here.coordinator.offsets == {}
            async with producer.transaction() as tx:
                await tx.reject(first, ValueError("no"), attempts=2)
                tx.commit_offsets(here.consumer)
            value = (first.value or b"").decode()
            assert committed_in(here.coordinator, here.here.world, topic=DEAD) == [value]
            assert here.coordinator.offsets[GROUP][first.partition] == 1
            with pytest.raises(InvalidTransaction, match="over"):
                await tx.reject(first)
            async with producer.transaction() as tx:
                with pytest.raises(InvalidRequest, match="copied"):
                    await tx.reject(copy.copy(first))


async def test_reject_what_was_lost(autojump_clock: MockClock) -> None:
    """The partition is another member's: its transaction must not count."""
    async with plant() as here:
        feed(here, 0, 4)
        first = await anext(here.consumer)
        state = here.consumer._subscription.states[first.topic, first.partition]
        async with here.mq.producer(transactions=True) as producer:

            async def try_it() -> None:
                async with producer.transaction() as tx:
                    state.ownership = PartitionOwnership()  # lost, and back since
                    await tx.reject(first)

            with pytest.raises(TransactionAborted) as caught:
                await try_it()
            assert caught.value.reason == "group"
        assert DEAD not in here.here.world.topics


async def test_no_room_for_a_dead_letter(autojump_clock: MockClock) -> None:
    """It would be so again: it ends with an error that says what to raise, and nothing is lost."""
    async with plant() as here:
        feed(here, 0, 2)

        async def transform(batch: AnyBatch, tx: Any) -> None:
            raise ValueError("no")

        def refuse(turn: Turn) -> Reply:
            return turn.refuse(ErrorCode.MESSAGE_TOO_LARGE)

        here.bureau.leader = 3
        here.here.world.brokers[3].produces += [refuse] * 9
        with pytest.raises(RaftmqError, match=r"max\.message\.bytes"), trio.fail_after(99):
            await raftmq.exactly_once(
                here.mq, here.consumer, transform, on_poison="dead_letter", attempts=1
            )
        assert here.coordinator.offsets == {}


async def test_nothing_is_left_behind_the_last_record(autojump_clock: MockClock) -> None:
    """Markers behind it are passed over, and committed alone, once: a group that has read all has
    no lag."""
    async with plant() as here, here.running():
        feed(here, 0, 10)
        await here.all_there(10)
        for partition in range(2):
            append_control(here.here.world, partition, topic="orders")
        await until(lambda: here.coordinator.offsets == {GROUP: {0: 6, 1: 6}}, seconds=5.0)
        commits = len(here.coordinator.commits)
        await trio.sleep(30)
        assert len(here.coordinator.commits) == commits
        feed(here, 10, 20)
        await here.all_there(20)
        assert here.coordinator.offsets == {GROUP: {0: 11, 1: 11}}


async def test_mistakes(autojump_clock: MockClock) -> None:
    """All bad numbers at once; a consumer that commits by itself is refused."""
    async with plant() as here:
        with pytest.raises(InvalidConfig) as caught:
            await raftmq.exactly_once(
                here.mq, here.consumer, here.transform, interval_ms=0, max_records=0, attempts=0
            )
        assert len(caught.value.problems) == 3
        here.here.append(0, "00", topic="orders")
        async with here.here.consumer("other", group="other", start="earliest") as consumer:
            await here.here.give(2, "other")
            with pytest.raises(InvalidTransaction, match='commit="batch"'):
                await raftmq.exactly_once(here.mq, consumer, here.transform)


async def test_no_member(autojump_clock: MockClock) -> None:
    """Nothing would keep a late commit of an earlier process out: it is refused before anything is
    opened, with both ways out."""
    async with plant() as here:
        options = {"assign": [("orders", 0)], "delivery": "exactly_once"}
        async with here.here.consumer("other", **options) as consumer:
            words = r"name topics instead.*a transaction_id"
            with pytest.raises(InvalidConfig, match=words), trio.fail_after(9):
                await raftmq.exactly_once(here.mq, consumer, here.transform)
        assert not here.coordinator.rows
