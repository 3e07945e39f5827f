"""A simulated connection between a member's process and a broker: in order, until it breaks.

Owns what a network does: delays, silence, ends that one side notices before the other, and proxies
that deliver requests after their sender has moved to another connection. Each request completes
once: with the answer, or without one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.errors import Disconnected, RaftmqError
from tests.simulation.groups.checks import demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.wire.bodies import Body
    from tests.simulation.groups.asks import Ask, Committed
    from tests.simulation.groups.broker import Broker
    from tests.simulation.groups.process import Process

PATIENCE_SECONDS = 2.0  # beyond what the request itself may take


class Heard(NamedTuple):
    """Attributes:
    outcome: an answer, or why there is none.
    slot_epoch: of the coordinator that answered; -1: it was none.
    is_outdated: the slot was another broker's when it was answered.
    """

    outcome: Body | Committed | RaftmqError
    slot_epoch: int = -1
    is_outdated: bool = False


Hear: TypeAlias = "Callable[[Heard], None]"


class Connection:
    def __init__(self, process: Process, broker: Broker) -> None:
        self.process, self.broker = process, broker
        self.is_open, self.is_mute = True, False
        self._timeline = process.world.timeline
        self._asks: list[tuple[Ask, Hear]] = []  # that are not answered
        self._there_at = self._back_at = 0.0
        self._kept_back: list[Ask] | None = None
        self._restarts = broker.restarts

    def send(self, ask: Ask, hear: Hear) -> None:
        self._asks.append((ask, hear))
        world = self.process.world
        self._there_at = max(self._there_at, self._timeline.now + world.delay())
        self._timeline.at(self._there_at, self._arrive, ask)
        seconds = world.plan.member.rebalance_seconds * 2 + PATIENCE_SECONDS
        self._timeline.after(seconds, self._check_answered, ask)

    def answer(self, ask: Ask, body: Body | Committed, *, slot_epoch: int = -1) -> None:
        world = self.process.world
        heard = Heard(body, slot_epoch, slot_epoch not in (-1, world.quorum.slot.epoch))
        self._back_at = max(self._back_at, self._timeline.now + world.delay())
        self._timeline.at(self._back_at, self._return, ask, heard)

    def mute(self) -> None:
        """Nothing passes any more, and neither end notices before it is cut."""
        self.is_mute = True

    def cut(self) -> None:
        if self.is_open:
            self.is_open = False
            if self._kept_back is None:
                seconds = self.process.world.notice_seconds()
                notice_at = max(self._there_at, self._timeline.now + seconds)
                self._timeline.at(notice_at, self.broker.on_cut, self)
            self.process.when_awake(self._end)

    def keep_back(self) -> None:
        """What is sent from now on, or on its way."""
        self._kept_back = self._kept_back or []

    def deliver(self) -> None:
        """What was kept back, if the broker is the same process still; then this is over."""
        asks, self._kept_back = self._kept_back or [], None
        self.cut()
        for ask in asks:
            if self._restarts == self.broker.restarts:
                self._timeline.say(f"late, of {self.process}: {ask}")
                self.broker.on_request(self, ask)
        self._timeline.after(self.process.world.linger_seconds(), self.broker.on_cut, self)

    def _arrive(self, ask: Ask) -> None:
        if self._kept_back is not None:
            self._kept_back.append(ask)
        elif not self.is_mute:
            self.broker.on_request(self, ask)

    def _return(self, ask: Ask, heard: Heard) -> None:
        if self.is_open and not self.is_mute:
            self.process.when_awake(partial(self._hear, ask, heard))

    def _hear(self, ask: Ask, heard: Heard) -> None:
        for number, (waiting, hear) in enumerate(self._asks):
            if waiting is ask and self.is_open:
                del self._asks[number]
                self._timeline.say(f"{self.process} hears of {type(ask).__name__}: {heard.outcome}")
                return hear(heard)
        return None

    def _end(self) -> None:
        asks, self._asks = self._asks, []
        for _, hear in asks:
            hear(Heard(Disconnected("the connection broke")))

    def _check_answered(self, ask: Ask) -> None:
        """Nothing but a slow quorum takes that long."""
        is_waiting = any(waiting is ask for waiting, _ in self._asks)
        is_excused = self.process.is_paused or self.is_mute or not self.is_open
        is_slow = "slow_saves" in self.process.world.plan.kinds
        demand(
            not is_waiting or is_excused or is_slow,
            f"{self.process} asked {ask}, and is not answered",
        )
