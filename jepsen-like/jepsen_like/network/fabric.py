"""The switch's rules for a frame: cut, refuse, delay, duplicate, forward. Pure.

Gets frames, commands and the time; delivers by `send`. Cuts come first: a frame that is cut is
neither refused nor delayed, and a cut also drops frames in flight. Shapes hold for frames that come
after them: frames in flight keep their time, even when all is healed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.network.commands import Ask, Counts, Cut, Heal, Reset, ShapeLink
from jepsen_like.network.conversations import Conversations
from jepsen_like.network.delays import Delays
from jepsen_like.network.frames import RST, flags_of, is_tcp, reset_source, reset_target
from jepsen_like.network.hosts import BROADCAST_BIT
from jepsen_like.network.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from jepsen_like.network.commands import Command
    from jepsen_like.network.hosts import Host
    from jepsen_like.network.rules import Link


class Fabric:
    """Attributes:
    counts: of frames, so far.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        random: Random,
        send: Callable[[str, bytes], bool],
        *,
        delays: Delays | None = None,
    ) -> None:
        """`send`: give a frame to a host; whether its device took it."""
        self._names = {host.hardware_address: host.name for host in hosts}
        self._hardware = {name: hardware for hardware, name in self._names.items()}
        self._send = send
        self._rules = Rules(random)
        self._delays = Delays() if delays is None else delays
        self._conversations = Conversations()
        self.counts = Counts()

    @property
    def next_due(self) -> float | None:
        """When `on_time` has something to do."""
        return self._delays.next_due

    def on_frame(self, source: str, frame: bytes, now: float) -> None:
        target = self._names.get(frame[:6])
        if target is not None:
            self._pass(source, target, frame, now)
        elif frame[0] & BROADCAST_BIT:
            for name in self._hardware:
                if name != source:
                    self._pass(source, name, frame, now)
        else:
            self.counts.stray += 1

    def on_time(self, now: float) -> None:
        for (_, target), frame in self._delays.pop_due(now):
            self._forward(target, frame)

    def on_command(self, command: Command, now: float) -> Counts:
        match command:
            case Cut(source, target):
                self._rules.cut((source, target))
                self.counts.cut += self._delays.drop((source, target))
            case ShapeLink(source, target, shape):
                self._rules.shape((source, target), shape)
            case Reset(one, other, seconds):
                self._rules.reset((one, other), until=now + seconds)
                self._rules.reset((other, one), until=now + seconds)
                self._reset_known(one, other)
            case Heal():
                self._rules.heal()
            case Ask():
                pass
        self.counts.commands += 1
        return self.counts

    def _pass(self, source: str, target: str, frame: bytes, now: float) -> None:
        if self._rules.is_clear:
            self._conversations.note(frame)
            self._forward(target, frame)
            return
        link = (source, target)
        if self._rules.is_cut(link):
            self.counts.cut += 1
        elif self._rules.is_reset(link, now=now) and is_tcp(frame) and not flags_of(frame) & RST:
            self._refuse(frame)
        else:
            self._carry(link, frame, now)

    def _carry(self, link: Link, frame: bytes, now: float) -> None:
        due_times = self._rules.due_times(link, now=now)
        self.counts.lost += not due_times
        self.counts.duplicated += len(due_times) > 1
        if due_times:
            self._conversations.note(frame)
        for due in due_times:
            if due <= now:
                self._forward(link[1], frame)
            elif self._delays.push(link, frame, due=due):
                self.counts.delayed += 1
            else:
                self.counts.overflowed += 1

    def _forward(self, target: str, frame: bytes) -> None:
        if self._send(target, frame):
            self.counts.forwarded += 1
        else:
            self.counts.stray += 1

    def _refuse(self, frame: bytes) -> None:
        self.counts.refused += 1
        self._send_resets(reset_target(frame, is_delivered=False), reset_source(frame))

    def _reset_known(self, one: str, other: str) -> None:
        hardware = self._hardware[one], self._hardware[other]
        self._send_resets(*self._conversations.reset(*hardware))

    def _send_resets(self, *resets: bytes | None) -> None:
        """At once, past all delays: with a number that is too early the receiver asks again."""
        for reset in resets:
            if reset is not None:
                self.counts.resets += self._send(self._names[reset[:6]], reset)
