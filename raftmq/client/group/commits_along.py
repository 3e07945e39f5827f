"""Commits that nobody waits for: as far as the program has come, where it has begun, and at last.

Owns when these are made, and made again. Whatever was refused is committed later; what others have
by then, they do again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from raftmq.client.group.changes import PAUSE_SECONDS
from raftmq.client.group.committing import VERDICTS
from raftmq.errors import RaftmqError, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.consumer.group_options import GroupReading
    from raftmq.client.group.offsets import MemberOffsets
    from raftmq.client.group.reader import Reader

COMMITTING_SHARE = 0.8  # of the time for leaving

logger = logging.getLogger(__name__)


class CommitsAlong:
    """`is_member`: else the program has chosen its partitions itself, and refusals are for good."""

    def __init__(
        self,
        options: GroupReading,
        offsets: MemberOffsets,
        reader: Reader,
        is_member: Callable[[], bool],
    ) -> None:
        self._options, self._offsets, self._reader = options, offsets, reader
        self._is_member = is_member

    async def along(self) -> None:
        """In the background, as far as the program has come. What it finishes meanwhile, or what
        was refused, is committed next, also if nothing else ever comes.
        """
        while True:
            finished, is_committed = self._reader.finished, False
            try:
                await self._offsets.commit_done()
                is_committed = True
            except RaftmqError as error:
                logger.debug("not committed: group=%s %s", self._options.member.group, error)
                await anyio.sleep(PAUSE_SECONDS)
            if is_committed:
                await finished.wait()
            await anyio.sleep(self._options.commit_interval_ms / 1000)

    async def passed(self) -> None:
        """In the background, where the program's asking commits: control batches that come when it
        has all records already would count as what it has not read.
        """
        while True:
            await self._reader.passed.wait()
            is_committed = False
            while not is_committed:
                await anyio.sleep(self._options.commit_interval_ms / 1000)
                try:
                    await self._offsets.commit_passed()
                    is_committed = True
                except RaftmqError as error:
                    logger.debug("not committed: group=%s %s", self._options.member.group, error)
                    await anyio.sleep(PAUSE_SECONDS)

    async def beginnings(self) -> None:
        """In the background: so a member that ends before it has finished anything leaves behind
        where it has begun, and nothing that came since is passed over.
        """
        while True:
            begun = self._reader.begun
            try:
                await self._offsets.commit_beginnings()
            except RaftmqError as error:
                logger.debug("not committed: group=%s %s", self._options.member.group, error)
                if self._is_member() or error.retriable:
                    await anyio.sleep(PAUSE_SECONDS)
                    continue
            await begun.wait()

    async def at_last(self, *, is_all: bool) -> RaftmqError | None:
        """What is done, in most of the time that there is: while the group deals anew it takes no
        commits. Why it was in vain, if it was; what others have by now, they will do again.
        """
        now, group = anyio.current_time(), self._options.member.group
        deadline = now + COMMITTING_SHARE * (anyio.current_effective_deadline() - now)
        problem: RaftmqError = RequestTimedOut(
            f"group {group!r}: nobody has answered in time: what was handed out last may not be "
            "committed, and comes again then"
        )
        with anyio.CancelScope(deadline=deadline):
            while True:
                try:
                    await self._offsets.commit_done(is_all=is_all, deadline=deadline)
                    return None
                except RaftmqError as error:
                    problem = error
                    is_passing = self._is_member() and isinstance(error, VERDICTS)
                    if not (error.retriable or is_passing):
                        break
                await anyio.sleep(PAUSE_SECONDS)
        return problem
