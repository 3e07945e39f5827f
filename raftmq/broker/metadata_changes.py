"""Metadata changes that clients ask for: proposed to the controller, then awaited in this image.

Owns the way of a change through the controller and what is answered. Never proposes a command
twice: one whose outcome is unknown may still be applied. Where only that command can have led to
what the image shows, the image settles the outcome.

Invariants: an outcome without an error means that the change is committed. Whether this broker's
image shows it within the time limit makes no difference to that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

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
    from collections.abc import Callable, Iterator, Sequence

    from raftmq.broker.controller_link import ControllerLink
    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

    Look: TypeAlias = Callable[[MetadataImage], bool]

Wish = TypeVar("Wish")

CONCURRENT_MAX = 32  # changes of one request in flight, so that it leaves room for others'
UNCERTAIN_SECONDS_MAX = 5.0  # to watch the image for a change of unknown outcome: an election
CATCH_UP_SECONDS_MAX = 5.0  # then the client may ask another broker, which is not behind


class ChangeStep(NamedTuple):
    """One command, and how the image shows that it was applied.

    `is_shown`: end of the wait. `proves`: only this command can have led to such an image; None
    where that cannot be told.
    """

    command: AnyCommand
    is_shown: Look
    proves: Look | None = None


Change: TypeAlias = tuple[ChangeStep, ...]


class ChangeOutcome(NamedTuple):
    """`done`: how many commands of the change were certainly applied.

    `is_uncertain`: the next one may have been applied as well, or may be later.
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
    def __init__(self, quorum: MetadataQuorum, proposer: ControllerLink) -> None:
        self._quorum, self._proposer = quorum, proposer

    @property
    def image(self) -> MetadataImage:
        return self._quorum.image

    async def catch_up(self, *, timeout_ms: int) -> None:
        """Wait until this image holds all that was acknowledged, anywhere, before this call.

        Raises:
            NotController: not achieved in time; definite, and worth another try.
        """
        seconds = min(timeout_ms / 1000, CATCH_UP_SECONDS_MAX)
        deadline = trio.current_time() + seconds
        try:
            # A round of the quorum's leader; ends with its answer or the timeout.
            version = await self._proposer.read_barrier(timeout=seconds)
        except RaftmqError as error:
            raise NotController(f"this broker cannot tell whether it is behind: {error}") from error
        # The image follows the quorum, usually within milliseconds.
        if not await self._wait_shown(lambda image: image.version >= version, deadline):
            raise NotController(
                f"this broker is behind: metadata version {self.image.version}, expected {version}"
            )

    async def make(
        self, wanted: Sequence[Change | RaftmqError], *, timeout_ms: int, is_dry_run: bool = False
    ) -> list[ChangeOutcome]:
        """Carry out each change, several at a time; outcomes in the order of `wanted`.

        An error in place of a change is its outcome. A dry run applies them to this broker's
        image, each on its own.
        """
        deadline = trio.current_time() + timeout_ms / 1000
        outcomes: dict[int, ChangeOutcome] = {}
        waiting = iter(enumerate(wanted))

        async def work() -> None:
            # Three cases: refused while planning, a rehearsal, the real thing.
            for number, change in waiting:
                if isinstance(change, RaftmqError):  # refused while planning
                    outcomes[number] = ChangeOutcome(0, change)
                elif is_dry_run:  # nothing is proposed
                    outcomes[number] = await self._rehearse(change)
                else:
                    # As long as the deadline allows.
                    outcomes[number] = await self._carry_out(change, deadline)

        # Workers share one iterator: ends when every change has an outcome.
        async with trio.open_nursery() as nursery:
            for _ in range(min(CONCURRENT_MAX, len(wanted))):
                nursery.start_soon(work)
        return [outcomes[number] for number in range(len(wanted))]

    async def _rehearse(self, change: Change) -> ChangeOutcome:
        await trio.lowlevel.checkpoint()  # there may be a thousand of them in one request
        image = self.image
        try:
            for step in change:
                encode_command(step.command)
                envelope = Envelope(FORMAT_VERSION, step.command)
                image, result = apply(image, image.version + 1, envelope)
                if isinstance(result, Refused):  # the refusal that the real change would get
                    return ChangeOutcome(0, error_for(result.code, result.message))
        except RaftmqError as error:  # too large
            return ChangeOutcome(0, error)
        return ChangeOutcome(0)

    async def _carry_out(self, change: Change, deadline: float) -> ChangeOutcome:
        """One step after the other: each builds on the one before."""
        for done, step in enumerate(change):
            try:
                result = await self._propose(step.command, deadline)
            except RaftmqError as error:  # definite: refused; indefinite: it may have been applied
                # Definite: certainly not applied. Otherwise the image may show that it was.
                if error.definite:
                    return ChangeOutcome(done, error)
                # The image may show the change after all.
                if not await self._has_happened(step, deadline):
                    return ChangeOutcome(done, error, is_uncertain=True)
            else:
                if isinstance(result, Refused):  # refused by the rules: certainly not applied
                    return ChangeOutcome(done, error_for(result.code, result.message))
        if change:
            # Committed already; this only lets the client read its own change.
            await self._wait_shown(change[-1].is_shown, deadline)
        return ChangeOutcome(len(change))

    async def _propose(self, command: AnyCommand, deadline: float) -> AnyResult:
        seconds = deadline - trio.current_time()
        # Not sent at all, so that the error is definite.
        if seconds <= 0:
            return Refused(
                ErrorCode.REQUEST_TIMED_OUT, "no time was left to begin with it: allow for more"
            )
        # Committed and applied, refused, or unknown at the deadline.
        return await self._proposer.propose(command, timeout=seconds)

    async def _has_happened(self, step: ChangeStep, deadline: float) -> bool:
        if step.proves is None:  # another command could have had the same effect
            return False
        latest = trio.current_time() + UNCERTAIN_SECONDS_MAX
        # Until the image proves it, or for a few seconds.
        return await self._wait_shown(step.proves, min(deadline, latest))

    async def _wait_shown(self, look: Look, deadline: float) -> bool:
        """Whether `look` was true of an image before the deadline."""
        image = self._quorum.image
        with trio.move_on_at(deadline):
            while not look(image):
                image = await self._quorum.wait_changed(image.version)
        return look(image)


def plan_each(
    wishes: Sequence[Wish], plan: Callable[[Wish], Change], *, key: Callable[[Wish], object]
) -> list[Change | RaftmqError]:
    """The change for each wish, or the error why there is none.

    Wishes with the same key are refused: their order would decide, and they have none.
    """
    return list(each_planned(wishes, plan, key=key))


def each_planned(
    wishes: Sequence[Wish], plan: Callable[[Wish], Change], *, key: Callable[[Wish], object]
) -> Iterator[Change | RaftmqError]:
    """The same one by one, for thousands of wishes."""
    counts = Counter(map(key, wishes))
    for wish in wishes:
        try:
            if counts[key(wish)] > 1:  # two wishes for one topic have no order
                raise InvalidRequest("named more than once in this request: name it once")
            planned: Change | RaftmqError = plan(wish)
        except RaftmqError as error:  # one wish's refusal is its own outcome
            planned = error
        yield planned
