"""Why a command waits: no leader, no coordinator, no quorum; printed to stderr while it retries.

The client retries until its deadline, or for ever, and rightly so; but the person in front of it
wants to know why nothing comes. After some seconds without progress the admin client asks the
simplest questions that need the same leaders, coordinator and quorum. If they are answered, nothing
is printed. An error that ends the command for lack of an answer gets the reason appended.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import anyio
import click

from raftmq.cli.terminal.exits import ExitCode, exit_code_of
from raftmq.cli.terminal.program import as_called
from raftmq.client.network.channel import one_error
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.client.administration.admin import Admin

LOOK_SECONDS = 0.5  # between checks for progress
FIRST_SECONDS = 2.0  # without progress until the first question: an ordinary failover is shorter
SILENT_SECONDS = 5.0  # until the next one, as the cluster has enough to do then
ANSWER_SECONDS_MAX = 2.0  # for each question; none in time is the reason itself
LAST_SECONDS_MAX = 0.5  # for the reason of an error, which people wait for; else the last one known
NO_QUORUM = "the quorum has no leader: `raftmq quorum status` shows why"
WAY_OUT = "`raftmq cluster health` shows how the cluster is"


class WaitedFor(NamedTuple):
    """What a command cannot do without: leaders of partitions, a coordinator, the quorum.

    Attributes:
        partitions: of all topics; empty: all of them.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    group: str | None = None
    is_quorum_needed: bool = False


class WaitReason:
    """Watches the progress of one command, and finds the reason where there is none.

    Args:
        is_told: print reasons to stderr; else they are in errors alone.

    Attributes:
        taken: grows with the command's progress; None: it waits for nothing (the input, say).
        reason: the last one that was found; empty: none is known.
    """

    def __init__(
        self,
        admin: Admin,
        wanted: WaitedFor,
        taken: Callable[[], int | None] = lambda: 0,
        *,
        is_told: bool = True,
    ) -> None:
        self._admin, self._wanted, self._is_told = admin, wanted, is_told
        self.taken = taken
        self.reason = ""

    @asynccontextmanager
    async def explained(self) -> AsyncIterator[None]:
        """Around the command's work."""
        with one_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.watch)
                try:
                    with one_error():
                        yield
                except RaftmqError as error:
                    raise await self._explain(error) from error
                tasks.cancel_scope.cancel()

    async def watch(self) -> None:
        """Until it is cancelled; prints each reason once, until it changes or is gone."""
        last, ask_at = self.taken(), anyio.current_time() + FIRST_SECONDS
        while True:
            await anyio.sleep(LOOK_SECONDS)
            before, last = last, self.taken()
            # Progress, or nothing to wait for: the clock starts anew.
            if last is None or last != before:
                self.reason, ask_at = "", anyio.current_time() + FIRST_SECONDS
            elif anyio.current_time() >= ask_at:
                said, self.reason = self.reason, await self._find()
                self._tell(said)
                ask_at = anyio.current_time() + SILENT_SECONDS

    def _tell(self, said: str) -> None:
        if self._is_told and self.reason and self.reason != said:
            click.echo(f"raftmq: waiting: {as_called(self.reason)}", err=True)

    async def _explain(self, error: RaftmqError) -> RaftmqError:
        if exit_code_of(error) is not ExitCode.UNREACHABLE:
            return error
        # Asked anew: the reason of some seconds ago may be half of it, as soon after a failure.
        with anyio.move_on_after(LAST_SECONDS_MAX):
            self.reason = await self._find() or self.reason
        told = error.copied()
        told.args = (with_reason(str(error), self.reason or WAY_OUT),)
        return told

    async def _find(self) -> str:
        """The reason; empty for errors that end the command, as waiting does not help."""
        try:
            return await self._ask()
        except RaftmqError as error:
            if exit_code_of(error) is not ExitCode.UNREACHABLE:
                return ""
            return f"{' '.join(str(error).split())}; {WAY_OUT}"

    async def _ask(self) -> str:
        """The reason, or empty. Raises RaftmqError: of the first question without an answer."""
        admin, wanted = self._admin.with_timeout(ANSWER_SECONDS_MAX), self._wanted
        # The quorum first: without it leaders and coordinators may still answer, but not be
        # replaced.
        if wanted.is_quorum_needed and (await admin.describe_cluster()).controller_id is None:
            return NO_QUORUM
        for topic in wanted.topics:
            await admin.offsets(topic, "latest", partitions=wanted.partitions or None)
        if wanted.group is not None:
            await admin.group_offsets(wanted.group)
        return ""


def with_reason(line: str, reason: str) -> str:
    """The line with the reason appended, unless it contains it already."""
    return line if not reason or reason in line else f"{line}; {reason}"
