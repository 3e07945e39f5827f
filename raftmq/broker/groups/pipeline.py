"""What the groups of one slot change, one command after the other, in the order in which it came.

Owns the line of a slot. One command is under way; commits that come meanwhile share the next one.
A command is repeated under the same id until it is certain what became of it, or the slot is lost:
so nothing that comes late can overtake what came after it.

    not taken by anybody    it stays in line, and may be withdrawn; then again
    perhaps taken           again, under the same id
    slot lost               what may have been taken is unknown; the rest certainly was not
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import trio

from raftmq.broker.groups.batches import Commits, Decision, GroupChange, batch_of, part_of
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
    OffsetsCommitted,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from raftmq.broker.groups.batches import CommitEntry, Outcome
    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.image import MetadataImage


PROPOSE_SECONDS = 5.0
PAUSE_SECONDS = 0.1  # before the same is tried again
GRACE_SECONDS = 0.5  # for the answer to a command that was sent before the slot was lost
FORGOTTEN_TRIES_MAX = 3  # for each of them a thousand other commands have to be quicker
LINE_BYTES_MAX = 8 << 20
LINE_ENTRIES_MAX = 10_000
# Refusals after which this process owns the slot no more, whatever its own metadata shows.
_LOST = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
)


class EntryProposer(Protocol):
    """The way to whoever leads the quorum."""

    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float,  # noqa: ASYNC109  # part of the outcome, not a wait
        command_id: CommandId | None,
    ) -> AnyResult:
        """What applying the command answered; raises a RaftmqError where there was no answer."""


class SlotOwnership(Protocol):
    """This broker's right to a slot, from when it was given to when it is lost."""

    @property
    def slot(self) -> int: ...

    @property
    def slot_epoch(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...


class Pipeline:
    """
    Args:
        sequences: of the ids of all commands of this broker.
        look: an image that shows all that was answered before the call.
        on_lost: the quorum says that the slot is another's.

    Attributes:
        settled: number of the last entry that has left the line; 1: there was none. They are
            numbered in the order in which they were put in.
    """

    def __init__(
        self,
        broker_id: int,
        tenure: SlotOwnership,
        proposer: EntryProposer,
        *,
        sequences: Iterator[int],
        look: Callable[[], Awaitable[MetadataImage]],
        on_lost: Callable[[], None],
    ) -> None:
        self._broker_id, self._tenure, self._proposer = broker_id, tenure, proposer
        self._sequences, self._look, self._on_lost = sequences, look, on_lost
        self._line: deque[CommitEntry] = deque()
        self._bytes = 0
        self._woken, self._scope = trio.Event(), trio.CancelScope()
        self.settled, self.is_lost = 1, False

    @property
    def is_idle(self) -> bool:
        return not self._line

    @property
    def newest(self) -> int:
        """Number of the entry that was put in last."""
        return self.settled + len(self._line)

    def put(self, entry: CommitEntry, *, is_owed: bool = False) -> None:
        """At the end of the line. What the rules of a group owe to their members always fits.

        Raises:
            NotCoordinator: the slot is lost.
            QuorumBusy: too much waits already.
        """
        if self.is_lost:
            raise self._not_coordinator()
        if not is_owed and self._is_full(entry):
            raise QuorumBusy(
                f"{len(self._line)} changes of {self._bytes} bytes wait for slot"
                f" {self._tenure.slot} already: wait a moment, and commit less often"
            )
        self._line.append(entry)
        self._bytes += entry.size
        self._woken.set()

    def _is_full(self, entry: CommitEntry) -> bool:
        if not self._line:
            return False
        too_long = len(self._line) >= LINE_ENTRIES_MAX
        return too_long or self._bytes + entry.size > LINE_BYTES_MAX

    def withdraw(self, entry: CommitEntry) -> bool:
        """Whether it certainly was not, and never will be, carried out. It is told nothing."""
        entry.is_withdrawn = True
        return not entry.is_sent

    def abandon(self) -> None:
        """The slot is lost. What may have been carried out is told after a moment, the rest now."""
        if self.is_lost:
            return
        self.is_lost = True
        sent = [entry for entry in self._line if entry.is_sent]
        unsent = [entry for entry in self._line if not entry.is_sent]
        self._line, self._bytes = deque(sent), sum(entry.size for entry in sent)
        self._woken.set()
        self._scope.deadline = trio.current_time() + (GRACE_SECONDS if sent else 0.0)
        for entry in unsent:
            _tell(entry, self._not_coordinator())

    async def run(self) -> None:
        """Until the slot is lost."""
        with self._scope:
            while not self.is_lost:
                await self._woken.wait()
                await trio.lowlevel.checkpoint()  # all that this moment brings goes together
                await self._turn()
                if not self._line and not self.is_lost:
                    self._woken = trio.Event()
        if self.is_lost:
            self._tell_front(len(self._line), self._unknown())

    # One command

    async def _turn(self) -> None:
        """The front of the line, once: what nobody took stays there."""
        self._drop_withdrawn()
        if not self._line:
            return
        first = self._line[0]
        if isinstance(first, Decision):
            await self._decide(first)
        elif isinstance(first, GroupChange):
            await self._carry(first.command, 1)
        else:
            batch = batch_of(self._line)
            count = 1 + list(self._line).index(batch.entries[-1])
            tenure = self._tenure
            command = batch.command(slot=tenure.slot, slot_epoch=tenure.slot_epoch)
            await self._carry(command, count)

    def _drop_withdrawn(self) -> None:
        while self._line and self._line[0].is_withdrawn:
            self._bytes -= self._line.popleft().size
            self.settled += 1

    async def _decide(self, entry: Decision) -> None:
        try:
            image = await self._look()
            command = entry.decide(image)
        except RaftmqError as error:
            self._tell_front(1, error)
            return
        if self.is_lost:
            return  # it has been told
        if command is None:
            self._tell_front(1, Done())
        elif not await self._carry(command, 1):
            self._tell_front(1, self._unavailable())  # what it has seen is old by now

    async def _carry(self, command: AnyCommand, count: int) -> bool:
        """The command of the first `count` entries; False if nobody took it."""
        entries = [entry for entry in islice(self._line, count) if not entry.is_withdrawn]
        for entry in entries:
            entry.is_sent = True
        outcome = await self._outcome(command)
        if outcome is not None:
            self._tell_front(count, outcome)
            return True
        for entry in entries:
            entry.is_sent = False
        if self.is_lost:
            self._tell_front(len(self._line), self._not_coordinator())
        else:
            await trio.sleep(PAUSE_SECONDS)
        return False

    def _tell_front(self, count: int, outcome: Outcome) -> None:
        """Out of the line before anybody is told: who is may put in something new."""
        front = [self._line.popleft() for _ in range(min(count, len(self._line)))]
        self._bytes -= sum(entry.size for entry in front)
        self.settled += len(front)
        for entry in front:
            if isinstance(entry, Commits) and isinstance(outcome, OffsetsCommitted):
                _tell(entry, part_of(outcome, entry))
            else:
                _tell(entry, outcome)

    async def _outcome(self, command: AnyCommand) -> Outcome | None:
        """None: nobody took it. Else it is settled: it was applied, or never will be."""
        result = await self._result(command)
        for _ in range(FORGOTTEN_TRIES_MAX):
            if not (_may_be_forgotten(result) and _is_idempotent(command)):
                break
            result = await self._result(command)  # once more, under another id
        return self._refusal(result) if isinstance(result, Refused) else result

    def _refusal(self, refused: Refused) -> RaftmqError:
        if _may_be_forgotten(refused):
            return RequestTimedOut(f"it is not known whether this was done: {refused.message}")
        if refused.code not in _LOST:
            return error_for(refused.code, refused.message)
        self._on_lost()
        is_certain = refused.code is ErrorCode.NOT_COORDINATOR
        return self._not_coordinator() if is_certain else self._unknown()

    async def _result(self, command: AnyCommand) -> AnyResult | RaftmqError | None:
        """Of one id."""
        tenure = self._tenure
        command_id = CommandId(self._broker_id, tenure.broker_epoch, next(self._sequences))
        is_unknown = False
        while True:
            try:
                return await self._proposer.propose(
                    command, timeout=PROPOSE_SECONDS, command_id=command_id
                )
            except RaftmqError as error:
                is_unknown |= not error.definite
                if not is_unknown:
                    return None if error.retriable else error
            await trio.sleep(PAUSE_SECONDS)

    # What is told

    def _not_coordinator(self) -> NotCoordinator:
        return NotCoordinator(
            f"slot {self._tenure.slot} belongs to another broker now; nothing was changed"
        )

    def _unknown(self) -> RequestTimedOut:
        return RequestTimedOut(
            f"slot {self._tenure.slot} was lost meanwhile: it is not known whether this was"
            " carried out"
        )

    def _unavailable(self) -> QuorumBusy:
        return QuorumBusy(f"slot {self._tenure.slot}: the quorum takes nothing for the moment")


def _tell(entry: CommitEntry, outcome: Outcome) -> None:
    if not entry.is_withdrawn:
        entry.tell(outcome)


def _may_be_forgotten(result: object) -> bool:
    """Whether the id may be too old for the quorum to tell what became of it: nothing comes of it
    any more, yet it may have been applied. (Nothing that is sent from here is invalid.)
    """
    return isinstance(result, Refused) and result.code is ErrorCode.INVALID_REQUEST


def _is_idempotent(command: AnyCommand) -> bool:
    """Whether it comes to the same if it is applied twice, with nothing in between."""
    if isinstance(command, CommitOffsets):
        return all(
            commit.expected is None for commits in command.groups for commit in commits.commits
        )
    return not isinstance(command, DeleteGroup)


# -- Awaited --------------------------------------------------------------------------------------
# Waiting for what became of an entry in the line of a slot, for so long and not longer.
#
# Owns what is told when the time is over: who was not sent yet is taken out of the line, and that
# is certain; of all others nobody can know.


class PendingEntry:
    """`make` is given the function that the entry has to tell."""

    def __init__(self, make: Callable[[Callable[[Outcome], None]], CommitEntry]) -> None:
        self.entry = make(self._on_outcome)
        self._outcome: Outcome | None = None
        self._told = trio.Event()

    def _on_outcome(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._told.set()

    async def wait(self, pipeline: Pipeline, deadline: float) -> Outcome:
        """A result, or the error that says whether it may have happened."""
        with trio.move_on_at(deadline):
            await self._told.wait()
        if self._outcome is not None:
            return self._outcome
        if pipeline.withdraw(self.entry):
            return CoordinatorNotAvailable(
                "the quorum took nothing in time, and nothing was changed: ask again"
            )
        return RequestTimedOut("the quorum has not answered in time; it may have been carried out")
