"""Settling: asks leaders which committed transactions have their markers, and forgets those.

Owns the task that follows the metadata for unsettled commits of this broker's slots, asks their
leaders every half second, or at once where a client waits, and has forgotten what ids at rest have
settled; of others the next end takes it along. `unsettled.py` decides whom to ask about what. It
begins with nothing in every slot that it is given: all of it is in the metadata.
(Kafka: TransactionMarkerChannelManager, which tells leaders what is asked here)
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.broker.groups.batches import LoneCommand
from raftmq.broker.transactions.unsettled import ROUND_SECONDS, UnsettledCommits
from raftmq.errors import RaftmqError
from raftmq.metadata.commands import NO_VERSION, ForgetSettled
from raftmq.metadata.image import EMPTY_IMAGE, slot_of
from raftmq.metadata.transactions import outcome_of
from raftmq.model import TransactionOutcome
from raftmq.wire.messages.transactions import TransactionsSettled, TransactionsSettledReply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import TypeAlias

    from raftmq.broker.groups.batches import Outcome
    from raftmq.broker.groups.coordinator import GroupCoordinator, OwnedSlot
    from raftmq.broker.transactions.unsettled import Backlog, Questions, Transaction
    from raftmq.metadata.commands import SettledTransaction
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage, TransactionState
    from raftmq.metadata.quorum import MetadataQuorum

    Ask: TypeAlias = Callable[[int, TransactionsSettled], Awaitable[TransactionsSettledReply]]

SLICE = 1_000  # rows passed over in one step of the loop
BEHIND_SECONDS = 0.01  # between two looks at metadata that do not show a decision yet

logger = logging.getLogger("raftmq.broker")


class Settling:
    """`ask`: asks a broker, which may be this one; raises RaftmqError."""

    def __init__(self, coordinator: GroupCoordinator, quorum: MetadataQuorum, ask: Ask) -> None:
        self._coordinator, self._quorum, self._ask = coordinator, quorum, ask
        self._commits = UnsettledCommits()
        self._image = EMPTY_IMAGE  # the newest that was followed
        self._slots: set[tuple[int, int]] = set()  # with their epochs, whose rows were all read
        self._busy: set[int] = set()  # brokers that have a question
        self._forgetting: set[int] = set()  # slots with a ForgetSettled in line
        self._moved: dict[str, trio.Event] = {}  # by id, for those who wait
        self._woken = trio.Event()

    # For those who end transactions

    def backlog(self) -> Backlog:
        return self._commits.backlog(trio.current_time())

    def overdue(self, seconds: float) -> dict[str, Backlog]:
        """By transaction id, where a commit waits for leaders for longer."""
        return self._commits.overdue(trio.current_time(), seconds)

    def settled_of(self, transaction_id: str) -> tuple[SettledTransaction, ...]:
        """What the next end of the id lets the metadata forget."""
        return self._commits.settled_of(transaction_id)

    @property
    def settled_count(self) -> int:
        return self._commits.settled_count

    def unsettled_count(self, transaction_id: str, state: TransactionState) -> int:
        """Commits that this row lists and no leader has called settled as a whole."""
        return self._commits.unsettled_count(transaction_id, state)

    async def wait_room(
        self, slot: OwnedSlot, transaction_id: str, seen: int, deadline: float
    ) -> bool:
        """Until a commit of the id is settled after `settled_count` was `seen`; False at the
        deadline, or if the slot is lost.
        """
        return await self._wait(
            slot,
            transaction_id,
            lambda: self._commits.has_settled_since(transaction_id, seen),
            deadline,
        )

    async def wait_settled(
        self, slot: OwnedSlot, transaction_id: str, transaction: Transaction, deadline: float
    ) -> bool:
        """Until this commit, which was decided, is settled. False at the deadline, or if the slot
        is lost.
        """

        def is_settled() -> bool:
            outcome = outcome_of(self._image, *transaction)
            # These metadata do not show the decision yet.
            if outcome not in (TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED):
                return False
            return self._commits.is_settled(transaction_id, transaction)

        return await self._wait(slot, transaction_id, is_settled, deadline)

    async def wait_all_settled(
        self, slot: OwnedSlot, transaction_id: str, deadline: float, *, version: int = NO_VERSION
    ) -> bool:
        """Until every commit of the id is settled, that of `version` among them, which was decided.
        False at the deadline, or if the slot is lost.
        """

        def row() -> TransactionState | None:
            # The newest: it may list what was decided a moment ago and is not followed yet.
            return self._quorum.image.transactions.get(transaction_id)

        def is_settled() -> bool:
            state = row()
            return state is None or not self.unsettled_count(transaction_id, state)

        # The quorum has answered, and these metadata are behind by a moment. A version without
        # records may change no row by which a waiter is woken, so this looks again by itself.
        while version != NO_VERSION and ((state := row()) is None or state.last_version < version):
            if slot.transactions.is_lost or trio.current_time() >= deadline:
                return False
            await trio.sleep(BEHIND_SECONDS)
        return await self._wait(slot, transaction_id, is_settled, deadline)

    async def _wait(
        self, slot: OwnedSlot, name: str, is_over: Callable[[], bool], deadline: float
    ) -> bool:
        self._commits.want(name, trio.current_time())
        self._woken.set()
        try:
            with trio.move_on_at(deadline):
                # Only of slots whose rows were read it is known what is not settled.
                while not ((slot.slot, slot.slot_epoch) in self._slots and is_over()):
                    if slot.transactions.is_lost:
                        return False
                    # Replaced when it is set: after each question, and each change of the row.
                    await self._moved.setdefault(name, trio.Event()).wait()
                return True
            return False
        finally:
            if not self._commits.unwant(name):
                self._moved.pop(name, None)

    # The task

    async def run(self) -> NoReturn:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            round_at = trio.current_time()
            while True:
                with trio.move_on_at(self._commits.wake_at(round_at)):
                    await self._woken.wait()  # a client waits, or the time has come
                self._woken = trio.Event()
                is_round = trio.current_time() >= round_at
                if is_round:
                    round_at = trio.current_time() + ROUND_SECONDS
                await self._follow()  # reads rows in slices, if this broker was given slots
                for broker_id, questions in self._questions().items():
                    self._busy.add(broker_id)
                    nursery.start_soon(self._question, broker_id, questions)
                if is_round:
                    self._forget()
                self._tell()
        raise AssertionError("runs for ever")

    def _questions(self) -> dict[int, Questions]:
        image, now = self._quorum.image, trio.current_time()
        return self._commits.questions(image, now, busy=self._busy)

    async def _question(self, broker_id: int, questions: Questions) -> None:
        try:
            reply = await self._ask(broker_id, TransactionsSettled(questions))
        except RaftmqError as error:  # silent, or gone: asked again later
            logger.debug("not known what is settled: broker=%d reason=%s", broker_id, error)
        else:
            self._commits.on_answers(questions, reply.partitions, trio.current_time())
            self._tell()
        finally:
            self._busy.discard(broker_id)

    def _tell(self) -> None:
        for name in self._commits.take_moved():
            self._on_moved(name)

    def _on_moved(self, name: str) -> None:
        moved = self._moved.pop(name, None)
        if moved is not None:
            moved.set()

    # The metadata

    async def _follow(self) -> None:
        """Note the rows of this broker's slots that have changed, and all rows of new slots."""
        slots = {(slot.slot, slot.slot_epoch) for slot in self._owned()}
        given, kept = slots - self._slots, {number for number, _ in slots & self._slots}
        if self._slots - slots:
            self._drop(kept)
        # What changes while rows are read in slices is in the next delta.
        delta = self._quorum.delta_since(self._image.version)
        if not delta.is_complete:  # a snapshot was installed, or this broker has just started
            given, kept = slots, set()
        self._note_changed(delta, kept)
        if given:
            await self._read_all(delta.image, {number for number, _ in given})
        self._image, self._slots = delta.image, slots
        if given:  # who looked while rows were read has not seen that they are known now
            self._wake_all()

    def _drop(self, kept: set[int]) -> None:
        self._commits.drop_slots(kept)
        self._wake_all()  # those who wait find that the slot is lost

    def _wake_all(self) -> None:
        for name in list(self._moved):
            self._on_moved(name)

    def _note_changed(self, delta: MetadataDelta, numbers: set[int]) -> None:
        ids = delta.image.transaction_ids
        producer_ids, blocks = delta.transactions()
        names = {ids.get(key) for key in producer_ids}
        # The block of a commit that was forgotten is nobody's, while its id may have no other.
        names.update(ids.get(block) or self._commits.id_of_block(block) for block in blocks)
        if None in names:  # an id left this producer id, or was deleted
            names.update(self._commits.gone(delta.image))
        self._note(delta.image, (name for name in names if name is not None), numbers)

    def _owned(self) -> list[OwnedSlot]:
        return [slot for slot in self._coordinator.slots if slot.is_loaded]

    async def _read_all(self, image: MetadataImage, numbers: set[int]) -> None:
        known = [*image.transactions, *self._commits.gone(image)]
        for start in range(0, len(known), SLICE):
            self._note(image, known[start : start + SLICE], numbers)
            await trio.lowlevel.checkpoint()  # 100,000 rows would hold up the loop

    def _note(self, image: MetadataImage, names: Iterable[str], numbers: set[int]) -> None:
        now = trio.current_time()
        for name in names:
            if slot_of(name) in numbers:
                self._commits.note(name, image.transactions.get(name), now)
                self._on_moved(name)

    def _forget(self) -> None:
        slots = {slot.slot: slot for slot in self._owned()}
        for number, found in self._commits.to_forget(trio.current_time()).items():
            slot = slots.get(number)
            if slot is None or number in self._forgetting:
                continue
            self._forgetting.add(number)
            command = ForgetSettled(number, slot.slot_epoch, found)
            try:
                slot.transactions.put(LoneCommand(command, partial(self._on_forgotten, number)))
            except RaftmqError as error:  # the line is full: the next round tries again
                self._on_forgotten(number, error)

    def _on_forgotten(self, slot: int, outcome: Outcome) -> None:
        self._forgetting.discard(slot)
        if isinstance(outcome, RaftmqError):  # the next round finds it again
            logger.debug("settled commits not forgotten yet: slot=%d reason=%s", slot, outcome)
