"""What a member has asked of its coordinator, and when it asks next. Pure.

Two things at a time at most: a heartbeat, and one step of joining or leaving. Answers to anything
else are dropped: what has been asked anew is not awaited any more. Pauses grow while it fails.
Each JoinGroup has a number, the token: of two the coordinator lets the later one count, whichever
comes first.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from raftmq.client.group.effects import Ask
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.messages.groups import Heartbeat, JoinGroup

if TYPE_CHECKING:
    from random import Random

    from raftmq.client.group.effects import GroupRequest

PAUSES = Pauses(seconds_min=0.05, seconds_max=1.0)


class Asked(NamedTuple):
    """Attributes:
    step: for a heartbeat: what else was out when it was sent; None: nothing was.
    """

    token: int
    request: GroupRequest
    sent_at: float
    deadline: float
    step: GroupRequest | None = None


class Requests:
    """Attributes:
    step: the step of joining or leaving that is out.
    beat: the heartbeat that is out.
    step_at, beat_at: when to ask next if none is out; endless: not at all.
    """

    def __init__(self, random: Random) -> None:
        self._tokens = count(1)
        self._step_pauses, self._beat_pauses = Backoff(random, PAUSES), Backoff(random, PAUSES)
        self.step: Asked | None = None
        self.beat: Asked | None = None
        self.step_at = self.beat_at = math.inf

    def ask(self, request: GroupRequest, *, now: float, seconds_max: float) -> Ask:
        """A step takes the place of the one before, a heartbeat that of the last one."""
        step = self.step.request if self.step is not None else None
        token = next(self._tokens)
        if isinstance(request, JoinGroup):
            request = msgspec.structs.replace(request, number=token)
        asked = Asked(token, request, now, now + seconds_max, step)
        if isinstance(request, Heartbeat):
            self.beat, self.beat_at = asked, math.inf
        else:
            self.step, self.step_at = asked, math.inf
        return Ask(asked.token, request, asked.deadline)

    def take(self, token: int) -> Asked | None:
        """What that answers; it is not out any more. None: nothing that is awaited."""
        for asked in (self.step, self.beat):
            if asked is not None and asked.token == token:
                if asked is self.step:
                    self.step = None
                else:
                    self.beat = None
                return asked
        return None

    def expects(self, token: int) -> bool:
        return any(asked is not None and asked.token == token for asked in (self.step, self.beat))

    def overdue(self, now: float) -> list[int]:
        """Tokens of what should have been answered by now."""
        out = [asked for asked in (self.step, self.beat) if asked is not None]
        return [asked.token for asked in out if asked.deadline <= now]

    def repeat_step(self, *, now: float) -> None:
        """Once more, after a pause."""
        self.step, self.step_at = None, now + self._step_pauses.next_seconds()

    def repeat_beat(self, *, now: float) -> None:
        self.beat, self.beat_at = None, now + self._beat_pauses.next_seconds()

    def beat_next(self, at: float) -> None:
        """The last one was answered."""
        self.beat, self.beat_at = None, at
        self._beat_pauses.reset()

    def on_progress(self) -> None:
        """Joining has succeeded."""
        self._step_pauses.reset()

    def drop_step(self) -> None:
        self.step, self.step_at = None, math.inf

    def drop_all(self) -> None:
        self.drop_step()
        self.beat, self.beat_at = None, math.inf

    @property
    def look_at(self) -> float:
        """When the next of all this is due."""
        out = [asked.deadline for asked in (self.step, self.beat) if asked is not None]
        return min(self.step_at, self.beat_at, *out, math.inf)
