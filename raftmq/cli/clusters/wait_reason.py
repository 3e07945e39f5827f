"""Why nothing comes: told on stderr by a command that would otherwise wait without a word.

What it waits for is tried again until the time is over, or for ever, and rightly so; whoever looks
at it wants to know why. Where nothing comes for a while the simplest questions are asked that need
the same as the command does. If they are answered, nothing is said. An error that ends the command
because somebody did not answer says why, too, and where to look.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import anyio
import click

from raftmq.cli.terminal.exits import ExitCode, exit_code_of
from raftmq.client.network.channel import one_error
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.client.administration.admin import Admin

LOOK_SECONDS = 0.5  # whether something has come
FIRST_SECONDS = 2.0  # until it is asked why
SILENT_SECONDS = 5.0  # until it is asked again
ANSWER_SECONDS_MAX = 2.0
LAST_SECONDS_MAX = 0.5  # for the reason of an error; then what was known before has to do
NO_QUORUM = "the quorum has no leader: `raftmq quorum status` shows why"
WAY_OUT = "`raftmq cluster health` shows how the cluster is"


class WaitedFor(NamedTuple):
    """What a command cannot do without: leaders of partitions, a coordinator, the quorum.

    Attributes:
        partitions: of all topics; none: all.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    group: str | None = None
    is_quorum_needed: bool = False


class WaitReason:
    """Of one command.

    Args:
        is_told: on stderr; else in errors alone.

    Attributes:
        taken: grows with whatever comes; None: nothing is waited for.
        reason: for it, when it was looked for last; empty: none is known.
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
        """Until it is cancelled; each reason once, until it changes or is gone."""
        last, ask_at = self.taken(), anyio.current_time() + FIRST_SECONDS
        while True:
            await anyio.sleep(LOOK_SECONDS)
            before, last = last, self.taken()
            if last is None or last != before:
                self.reason, ask_at = "", anyio.current_time() + FIRST_SECONDS
            elif anyio.current_time() >= ask_at:
                said, self.reason = self.reason, await self._find()
                self._tell(said)
                ask_at = anyio.current_time() + SILENT_SECONDS

    def _tell(self, said: str) -> None:
        if self._is_told and self.reason and self.reason != said:
            click.echo(f"raftmq: waiting: {self.reason}", err=True)

    async def _explain(self, error: RaftmqError) -> RaftmqError:
        if exit_code_of(error) is not ExitCode.UNREACHABLE:
            return error
        with anyio.move_on_after(LAST_SECONDS_MAX):  # soon after a failure nobody knew the whole
            self.reason = await self._find() or self.reason
        told = error.copied()
        told.args = (with_reason(str(error), self.reason or WAY_OUT),)
        return told

    async def _find(self) -> str:
        """What does not pass by waiting, the command meets itself."""
        try:
            return await self._ask()
        except RaftmqError as error:
            if exit_code_of(error) is not ExitCode.UNREACHABLE:
                return ""
            return f"{' '.join(str(error).split())}; {WAY_OUT}"

    async def _ask(self) -> str:
        """Raises RaftmqError: of the first question that has no answer."""
        admin, wanted = self._admin.with_timeout(ANSWER_SECONDS_MAX), self._wanted
        if wanted.is_quorum_needed and (await admin.describe_cluster()).controller_id is None:
            return NO_QUORUM
        for topic in wanted.topics:
            await admin.offsets(topic, "latest", partitions=wanted.partitions or None)
        if wanted.group is not None:
            await admin.group_offsets(wanted.group)
        return ""


def with_reason(line: str, reason: str) -> str:
    """Unless it says that itself."""
    return line if not reason or reason in line else f"{line}; {reason}"
