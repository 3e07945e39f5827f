"""Changes of what a member reads, carried out one after the other.

Owns the order of the steps: what is dealt out is looked up, told, handed out; what is revoked is
held back, finished, committed, told, let go. What is lost is let go at once, whatever else is under
way, and is told in its turn.

Invariant: nothing is handed over before what was done of it is committed, as far as the commit mode
says so; but somebody else begins when the time is over, and does it again.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, TypeAlias

import anyio

from raftmq.client.group.committing import VERDICTS
from raftmq.client.group.effects import Assign, Cause, Lost, Revoke
from raftmq.client.group.rebalance import Rebalance
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.client.consumer.group_options import GroupReading
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.committing import Position
    from raftmq.client.group.membership import Membership
    from raftmq.client.group.offsets import MemberOffsets
    from raftmq.client.group.reader import Reader

PAUSE_SECONDS = 0.2  # before committed offsets are asked for again


@dataclass(frozen=True, slots=True)
class Renewed:
    """Their topic was deleted and made anew. What was read of the old one is as good as lost; they
    stay with this member, and are assigned next.
    """

    partitions: tuple[Key, ...]


Change: TypeAlias = Assign | Revoke | Lost | Renewed


class Changes:
    """
    Args:
        on_revoked: told the token of what is finished and committed.
        on_failed: told why the program, or the cluster, cannot go on with this. What is revoked is
            handed over all the same.

    Attributes:
        commits: what was done is committed before it is handed over.
    """

    def __init__(
        self,
        options: GroupReading,
        membership: Membership,
        offsets: MemberOffsets,
        reader: Reader,
        on_revoked: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._options, self._membership = options, membership
        self._offsets, self._reader = offsets, reader
        self._on_revoked, self._on_failed = on_revoked, on_failed
        self.commits = options.commits_by_itself
        self._waiting: deque[Change] = deque()
        self._current: tuple[Change, anyio.CancelScope] | None = None
        self._lost: set[Key] = set()  # since the current one began
        self._added = anyio.Event()

    def add(self, change: Change) -> None:
        """A revocation says all that is revoked by now, and takes the place of those before."""
        if isinstance(change, Revoke | Lost):
            self._drop_revocations()
        if isinstance(change, Revoke):
            self._reader.hold_back(change.partitions)
        elif isinstance(change, Lost | Renewed):
            cause = change.cause if isinstance(change, Lost) else Cause.OTHER
            self._let_go(change.partitions, cause)
            self._withdraw(change.partitions)
        self._waiting.append(change)
        self._added.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._added = anyio.Event()
            while self._waiting:
                change = self._waiting.popleft()
                self._lost.clear()
                with anyio.CancelScope() as scope:
                    self._current = change, scope
                    await self._carry_out(change)
                self._current = None
            await self._added.wait()

    def _drop_revocations(self) -> None:
        self._waiting = deque(one for one in self._waiting if not isinstance(one, Revoke))
        if self._current is not None and isinstance(self._current[0], Revoke):
            self._current[1].cancel()

    def _withdraw(self, keys: tuple[Key, ...]) -> None:
        """What was dealt out before is not assigned; it may be dealt out anew meanwhile."""
        self._lost.update(keys)
        for place, one in enumerate(self._waiting):
            if isinstance(one, Assign):
                rest = tuple(key for key in one.partitions if key not in keys)
                self._waiting[place] = Assign(rest, one.generation)

    def _let_go(self, keys: tuple[Key, ...], cause: Cause = Cause.OTHER) -> None:
        self._reader.release(keys, cause)
        self._offsets.forget(keys)

    async def _carry_out(self, change: Change) -> None:
        try:
            if isinstance(change, Assign):
                await self._assign(change)
            elif isinstance(change, Revoke):
                await self._revoke(change)
            else:
                await self._tell(Rebalance(lost=change.partitions))
        except RaftmqError as error:  # one without a remedy
            self._on_failed(error)

    async def _assign(self, change: Assign) -> None:
        committed = await self._find_committed(change)
        mine = self._still_held(change.partitions)
        if committed is None or not mine:
            return
        self._reader.assign(committed, mine)
        if await self._tell(Rebalance(assigned=mine, generation=change.generation)):
            self._reader.hand_out(self._to_hand_out(mine))

    async def _find_committed(self, change: Assign) -> dict[Key, Position] | None:
        """None: the partitions are not this member's any more."""
        while keys := self._still_held(change.partitions):
            try:
                return await self._offsets.find(keys)
            except RaftmqError as error:
                if not (error.retriable or isinstance(error, VERDICTS)):
                    raise
            await anyio.sleep(PAUSE_SECONDS)
        return None

    async def _revoke(self, change: Revoke) -> None:
        keys = change.partitions
        await self._reader.wait_finished(keys)
        if self.commits:
            with suppress(RaftmqError):  # it will be done again
                await self._offsets.commit_done(keys, deadline=change.deadline)
        await self._tell(Rebalance(revoked=keys, generation=self._membership.generation))
        self._let_go(keys)
        self._on_revoked(change.token)

    def _still_held(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        held = self._membership.held
        return tuple(key for key in keys if key in held and key not in self._lost)

    def _to_hand_out(self, keys: Iterable[Key]) -> list[Key]:
        """What is to be revoked next stays held back."""
        now, may = anyio.current_time(), self._membership.may_hand_out
        return [key for key in self._still_held(keys) if may(key, now=now)]

    async def _tell(self, rebalance: Rebalance) -> bool:
        """False: the program has failed over it."""
        if self._options.on_rebalance is None:
            return True
        try:
            answer = self._options.on_rebalance(rebalance)
            if isawaitable(answer):
                await answer
        except Exception as error:
            self._on_failed(error)
            return False
        return True
