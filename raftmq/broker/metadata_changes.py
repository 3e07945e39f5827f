"""Changes of the metadata that somebody asks for: proposed, and followed until they show here.

Owns the way of a change through the controller and what is told of it. Never proposes a command
twice: one whose fate is unknown may be applied yet. Where only that command can have made what the
image shows, the image settles its fate.

Invariants: an outcome without an error means that the change is committed. Whether this broker
has heard of it within the time limit makes no difference to that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

from raftmq.errors import (
    ErrorCode,
    InvalidRequest,
    NotController,
    RaftmqError,
    error_for,
)
from raftmq.metadata.apply import apply
from raftmq.metadata.commands import FORMAT_VERSION, Envelope, Refused, encode_command
from raftmq.wire.bodies import clip_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

    Look: TypeAlias = Callable[[MetadataImage], bool]

Wish = TypeVar("Wish")

CONCURRENT_MAX = 32  # changes of one request that are under way
UNCERTAIN_SECONDS_MAX = 5.0  # for which the image is watched for a change of unknown fate
CATCH_UP_SECONDS_MAX = 5.0  # then whoever asked may ask another broker, which is not behind


class Proposer(Protocol):
    """The way to whoever leads the quorum."""

    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> AnyResult:
        """What applying the command answered; raises a RaftmqError where there was no answer."""

    async def read_barrier(
        self,
        *,
        timeout: float,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> int:
        """The version that holds all that was acknowledged; raises a RaftmqError like `propose`."""


class ChangeStep(NamedTuple):
    """One command, and how to see that it was applied.

    `is_shown`: wait no longer. `proves`: nothing but this command can have led to such an image;
    None where that cannot be told.
    """

    command: AnyCommand
    is_shown: Look
    proves: Look | None = None


Change: TypeAlias = tuple[ChangeStep, ...]


class ChangeOutcome(NamedTuple):
    """`done`: how many of the change's commands were applied for certain.

    `is_uncertain`: the next one may have been, too, or may be later.
    """

    done: int
    error: RaftmqError | None = None
    is_uncertain: bool = False

    @property
    def code(self) -> ErrorCode:
        return ErrorCode.NONE if self.error is None else self.error.code

    @property
    def message(self) -> str:
        return "" if self.error is None else clip_message(str(self.error))


class MetadataChanges:
    def __init__(self, quorum: MetadataQuorum, proposer: Proposer) -> None:
        self._quorum, self._proposer = quorum, proposer

    @property
    def image(self) -> MetadataImage:
        return self._quorum.image

    async def catch_up(self, *, timeout_ms: int) -> None:
        """Until this broker's image holds all that was acknowledged, anywhere, before this call.

        Raises:
            NotController: it is not known in time; definite, and worth another try.
        """
        seconds = min(timeout_ms / 1000, CATCH_UP_SECONDS_MAX)
        deadline = trio.current_time() + seconds
        try:
            version = await self._proposer.read_barrier(timeout=seconds)
        except RaftmqError as error:
            raise NotController(f"this broker cannot tell whether it is behind: {error}") from error
        if not await self._wait_shown(lambda image: image.version >= version, deadline):
            raise NotController(
                f"this broker is behind: metadata version {self.image.version}, expected {version}"
            )

    async def make(
        self, wanted: Sequence[Change | RaftmqError], *, timeout_ms: int, is_dry_run: bool = False
    ) -> list[ChangeOutcome]:
        """Carry out each change, several at a time; outcomes in the order of `wanted`.

        An error in the place of a change is its outcome. A dry run tries them on this broker's
        image, each for itself.
        """
        deadline = trio.current_time() + timeout_ms / 1000
        outcomes: dict[int, ChangeOutcome] = {}
        waiting = iter(enumerate(wanted))

        async def work() -> None:
            for number, change in waiting:
                if isinstance(change, RaftmqError):
                    outcomes[number] = ChangeOutcome(0, change)
                elif is_dry_run:
                    outcomes[number] = await self._rehearse(change)
                else:
                    outcomes[number] = await self._carry_out(change, deadline)

        async with trio.open_nursery() as nursery:
            for _ in range(min(CONCURRENT_MAX, len(wanted))):
                nursery.start_soon(work)
        return [outcomes[number] for number in range(len(wanted))]

    async def _rehearse(self, change: Change) -> ChangeOutcome:
        await trio.lowlevel.checkpoint()  # there may be a thousand of them
        image = self.image
        try:
            for step in change:
                encode_command(step.command)
                envelope = Envelope(FORMAT_VERSION, step.command)
                image, result = apply(image, image.version + 1, envelope)
                if isinstance(result, Refused):
                    return ChangeOutcome(0, error_for(result.code, result.message))
        except RaftmqError as error:  # too large
            return ChangeOutcome(0, error)
        return ChangeOutcome(0)

    async def _carry_out(self, change: Change, deadline: float) -> ChangeOutcome:
        """One step after the other, as each builds on the one before."""
        for done, step in enumerate(change):
            try:
                result = await self._propose(step.command, deadline)
            except RaftmqError as error:
                if error.definite:
                    return ChangeOutcome(done, error)
                if not await self._has_happened(step, deadline):
                    return ChangeOutcome(done, error, is_uncertain=True)
            else:
                if isinstance(result, Refused):
                    return ChangeOutcome(done, error_for(result.code, result.message))
        if change:
            await self._wait_shown(change[-1].is_shown, deadline)
        return ChangeOutcome(len(change))

    async def _propose(self, command: AnyCommand, deadline: float) -> AnyResult:
        seconds = deadline - trio.current_time()
        if seconds <= 0:
            return Refused(
                ErrorCode.REQUEST_TIMED_OUT, "no time was left to begin with it: allow for more"
            )
        return await self._proposer.propose(command, timeout=seconds)

    async def _has_happened(self, step: ChangeStep, deadline: float) -> bool:
        if step.proves is None:
            return False
        latest = trio.current_time() + UNCERTAIN_SECONDS_MAX
        return await self._wait_shown(step.proves, min(deadline, latest))

    async def _wait_shown(self, look: Look, deadline: float) -> bool:
        """Whether the image looked like that before the deadline."""
        image = self._quorum.image
        with trio.move_on_at(deadline):
            while not look(image):
                image = await self._quorum.wait_changed(image.version)
        return look(image)


def plan_each(
    wishes: Sequence[Wish], plan: Callable[[Wish], Change], *, key: Callable[[Wish], object]
) -> list[Change | RaftmqError]:
    """The change that each wish comes to, or why it comes to none.

    Wishes with the same key are refused: nobody could tell which of them comes first.
    """
    counts = Counter(map(key, wishes))
    planned: list[Change | RaftmqError] = []
    for wish in wishes:
        try:
            if counts[key(wish)] > 1:
                raise InvalidRequest("named more than once in this request: name it once")
            planned.append(plan(wish))
        except RaftmqError as error:
            planned.append(error)
    return planned
