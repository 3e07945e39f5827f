"""Command pipeline of a slot: changes applied one command at a time, in order of arrival.

Owns a line of a slot: that of its groups, or that of its transaction ids. One command is in flight;
commits that come meanwhile share the next one. A command is repeated under the same id until its
outcome is certain or the slot is lost: so a late command can never overtake one that came after it
(decision 0021).

    certainly not applied   it stays in line, and may be withdrawn; then again
    possibly applied        again, under the same id
    slot lost               unknown for what may have been applied; the rest certainly was not
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.broker.groups.batches import Decision, LoneCommand, shared_by
from raftmq.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    NotCoordinator,
    QuorumBusy,
    RaftmqError,
    RequestTimedOut,
    error_for,
)
from raftmq.metadata.commands import (
    CommandId,
    CommitOffsets,
    DeleteGroup,
    Done,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from raftmq.broker.controller_link import ControllerLink
    from raftmq.broker.groups.batches import Batch, Outcome, PipelineEntry
    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.image import MetadataImage


PROPOSE_SECONDS = 5.0  # of one attempt; an election of the quorum takes up to two
PAUSE_SECONDS = 0.1  # before the next attempt
GRACE_SECONDS = 0.5  # for the answer to a command that was sent before the slot was lost
# An id is forgotten after a thousand later commands of this broker: a try that meets that again
# is very unlikely.
FORGOTTEN_TRIES_MAX = 3
# Of one slot; with 64 slots the memory of a broker stays bounded (decision 0021).
LINE_BYTES_MAX = 8 << 20
LINE_ENTRIES_MAX = 10_000
# Refusals after which this process does not own the slot, even if its own metadata says so.
_LOST = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
)


class SlotOwnership(NamedTuple):
    """This broker's right to a slot, from its assignment to its loss."""

    slot: int
    slot_epoch: int
    broker_epoch: int


class Pipeline:
    """
    Args:
        sequences: of all command ids of this broker.
        look: returns an image with all that was acknowledged before the call.
        on_lost: called when the quorum says that another broker owns the slot.

    Attributes:
        settled: number of the last entry that has left the line; 1: there was none. Entries are
            numbered in the order in which they were put in line.
    """

    def __init__(
        self,
        broker_id: int,
        ownership: SlotOwnership,
        proposer: ControllerLink,
        *,
        sequences: Iterator[int],
        look: Callable[[], Awaitable[MetadataImage]],
        on_lost: Callable[[SlotOwnership], None],
    ) -> None:
        self._broker_id, self._ownership, self._proposer = broker_id, ownership, proposer
        self._sequences, self._look, self._on_lost = sequences, look, on_lost
        self._line: deque[PipelineEntry] = deque()
        self._bytes = 0
        self._woken, self._scope = trio.Event(), trio.CancelScope()
        self.settled, self.is_lost = 1, False

    @property
    def is_idle(self) -> bool:
        return not self._line

    @property
    def newest(self) -> int:
        """Number of the entry that was put in line last."""
        return self.settled + len(self._line)

    def put(self, entry: PipelineEntry, *, is_owed: bool = False) -> None:
        """Append to the line. What the rules of a group owe to their members always fits.

        Raises:
            NotCoordinator: the slot is lost.
            QuorumBusy: the line is full.
        """
        if self.is_lost:
            raise self._not_coordinator()
        # Back-pressure on commits; members may commit less often.
        if not is_owed and self._is_full(entry):
            raise QuorumBusy(
                f"{len(self._line)} changes of {self._bytes} bytes wait for slot"
                f" {self._ownership.slot} already: wait a moment, and commit less often"
            )
        self._line.append(entry)
        self._bytes += entry.size
        self._woken.set()

    def _is_full(self, entry: PipelineEntry) -> bool:
        # A single entry larger than the limit must be possible.
        if not self._line:
            return False
        too_long = len(self._line) >= LINE_ENTRIES_MAX
        return too_long or self._bytes + entry.size > LINE_BYTES_MAX

    def withdraw(self, entry: PipelineEntry) -> bool:
        """Whether it certainly was not and never will be applied. Its callback is not called."""
        entry.is_withdrawn = True
        return not entry.is_sent

    def abandon(self) -> None:
        """The slot is lost. Entries that may have been applied get their outcome after a grace
        period, the others now.
        """
        if self.is_lost:
            return
        self.is_lost = True
        sent = [entry for entry in self._line if entry.is_sent]
        unsent = [entry for entry in self._line if not entry.is_sent]
        self._line, self._bytes = deque(sent), sum(entry.size for entry in sent)
        self._woken.set()
        self._scope.deadline = trio.current_time() + (GRACE_SECONDS if sent else 0.0)
        # Last, as callbacks may call back into this object.
        for entry in unsent:
            _tell(entry, self._not_coordinator())

    async def run(self) -> None:
        """Until the slot is lost."""
        with self._scope:
            while not self.is_lost:  # `abandon` sets it
                # Until an entry is put in line.
                await self._woken.wait()
                await trio.lowlevel.checkpoint()  # entries of this turn of the loop go together
                await self._turn()  # until one command is settled, or was not applied
                # Nothing is left: sleep until the next entry.
                if not self._line and not self.is_lost:
                    self._woken = trio.Event()
        # Also after the grace period: its answer did not come.
        if self.is_lost:
            self._settle_front(len(self._line), self._unknown())

    # One command

    async def _turn(self) -> None:
        """One command for the front of the line; if it was not applied the entries stay."""
        self._drop_withdrawn()
        if not self._line:  # all of them were withdrawn
            return
        first = self._line[0]
        # Three kinds of entries: decisions, single commands, and those that share one.
        if isinstance(first, Decision):
            await self._decide(first)  # a read barrier, then the command that it leads to
        elif isinstance(first, LoneCommand):  # a saved group or a deletion stands alone
            await self._carry(first.command, 1)
        else:
            batch, count = shared_by(self._line)
            ownership = self._ownership
            command = batch.command(slot=ownership.slot, slot_epoch=ownership.slot_epoch)
            await self._carry(command, count, batch)

    def _drop_withdrawn(self) -> None:
        while self._line and self._line[0].is_withdrawn:
            self._bytes -= self._line.popleft().size
            self.settled += 1

    async def _decide(self, entry: Decision) -> None:
        try:
            # Waits for a read barrier: everything before this entry is in the image.
            image = await self._look()
            command = entry.decide(image)
        except RaftmqError as error:  # no quorum, or the decision itself was refused
            self._settle_front(1, error)
            return
        if self.is_lost:  # the sender has its answer from `abandon`
            return  # `abandon` has called it back
        if command is None:  # nothing is to be changed
            self._settle_front(1, Done())
        elif not await self._carry(command, 1):
            self._settle_front(1, self._unavailable())  # the image is too old to try again with

    async def _carry(self, command: AnyCommand, count: int, batch: Batch | None = None) -> bool:
        """Carry out the command of the first `count` entries; False if it was not applied."""
        # From here on an entry cannot be withdrawn with certainty.
        entries = [entry for entry in islice(self._line, count) if not entry.is_withdrawn]
        for entry in entries:
            entry.is_sent = True
        # Repeated until it is certain, however long that takes.
        outcome = await self._outcome(command)
        if outcome is not None:  # applied, or refused for good
            self._settle_front(count, outcome, batch)
            return True
        # Certainly not applied: withdrawing is possible again.
        for entry in entries:
            entry.is_sent = False
        if self.is_lost:  # lost while it was certain that nothing was applied
            self._settle_front(len(self._line), self._not_coordinator())
        else:
            await trio.sleep(PAUSE_SECONDS)  # a quorum without a leader would be asked in a loop
        return False

    def _settle_front(self, count: int, outcome: Outcome, batch: Batch | None = None) -> None:
        """Remove entries before calling back: a callback may put a new one in line."""
        front = [self._line.popleft() for _ in range(min(count, len(self._line)))]
        self._bytes -= sum(entry.size for entry in front)
        self.settled += len(front)
        for entry in front:
            # Of a result that they share each entry gets its own part.
            if batch is None or entry.is_withdrawn or isinstance(outcome, RaftmqError):
                _tell(entry, outcome)
            else:
                _tell(entry, batch.part_of(outcome, entry))

    async def _outcome(self, command: AnyCommand) -> Outcome | None:
        """The settled outcome: applied, or never will be; None if certainly not applied yet."""
        result = await self._result(command)
        # Forgotten means certainly settled, not how: an idempotent command can simply be repeated.
        for _ in range(FORGOTTEN_TRIES_MAX):
            # Settled, or not safe to repeat.
            if not (_may_be_forgotten(result) and _is_idempotent(command)):
                break
            result = await self._result(command)  # once more, under another id
        return self._refusal(result) if isinstance(result, Refused) else result

    def _refusal(self, refused: Refused) -> RaftmqError:
        if _may_be_forgotten(refused):  # settled, without knowing how
            return RequestTimedOut(f"it is not known whether this was done: {refused.message}")
        # An ordinary refusal, such as an unexpected offset.
        if refused.code not in _LOST:
            return error_for(refused.code, refused.message)
        self._on_lost(self._ownership)
        # The other two codes only say that the registration is gone, not what became of the
        # command.
        is_certain = refused.code is ErrorCode.NOT_COORDINATOR
        return self._not_coordinator() if is_certain else self._unknown()

    async def _result(self, command: AnyCommand) -> AnyResult | RaftmqError | None:
        """Propose under one id until the outcome is certain; None: certainly not applied."""
        ownership = self._ownership
        command_id = CommandId(self._broker_id, ownership.broker_epoch, next(self._sequences))
        is_unknown = False
        while True:
            try:
                return await self._proposer.propose(
                    command, timeout=PROPOSE_SECONDS, command_id=command_id
                )
            except RaftmqError as error:  # no answer, or not taken
                # Once one attempt may have been applied, only an answer to the same id settles it.
                is_unknown |= not error.definite
                if not is_unknown:  # certainly not applied, so nothing has to be repeated
                    return None if error.retriable else error
            await trio.sleep(PAUSE_SECONDS)  # the outcome is unknown: the same id again, see above

    # Outcomes

    def _not_coordinator(self) -> NotCoordinator:
        return NotCoordinator(
            f"slot {self._ownership.slot} belongs to another broker now; nothing was changed"
        )

    def _unknown(self) -> RequestTimedOut:
        return RequestTimedOut(
            f"slot {self._ownership.slot} was lost meanwhile: it is not known whether this was"
            " carried out"
        )

    def _unavailable(self) -> QuorumBusy:
        return QuorumBusy(f"slot {self._ownership.slot}: the quorum takes nothing for the moment")


def _tell(entry: PipelineEntry, outcome: Outcome) -> None:
    if not entry.is_withdrawn:  # a withdrawn sender was answered already
        entry.tell(outcome)


def _may_be_forgotten(result: object) -> bool:
    """Whether the quorum may have forgotten the id: the command is settled, but it is unknown
    whether it was applied. (Commands that are sent from here are never invalid.)
    """
    return isinstance(result, Refused) and result.code is ErrorCode.INVALID_REQUEST


def _is_idempotent(command: AnyCommand) -> bool:
    """Whether applying it twice in a row is the same as once."""
    if isinstance(command, CommitOffsets):
        return all(
            commit.expected is None for commits in command.groups for commit in commits.commits
        )
    return not isinstance(command, DeleteGroup)


# -- Pending entries ------------------------------------------------------------------------------
# Waiting for the outcome of an entry in the pipeline of a slot, up to a deadline.
#
# Owns what is answered at the deadline: an entry that was not sent yet is withdrawn, which is
# certain; of others the outcome is unknown.


class PendingEntry:
    """`make` gets the callback for the entry's outcome."""

    def __init__(self, make: Callable[[Callable[[Outcome], None]], PipelineEntry]) -> None:
        self.entry = make(self._on_outcome)
        self._outcome: Outcome | None = None
        self._told = trio.Event()

    def _on_outcome(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._told.set()

    async def wait(self, pipeline: Pipeline, deadline: float) -> Outcome:
        """A result, or an error that says whether the entry may have been applied."""
        with trio.move_on_at(deadline):
            await self._told.wait()  # called back by the pipeline, or the deadline
        if self._outcome is not None:  # it came in time, perhaps in the very same moment
            return self._outcome
        # Time is up. Only what was never sent has certainly not happened.
        if pipeline.withdraw(self.entry):
            return CoordinatorNotAvailable(
                "the quorum took nothing in time, and nothing was changed: ask again"
            )
        return RequestTimedOut("the quorum has not answered in time; it may have been carried out")
