"""One member, and a test in the place of everybody else."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from raftmq.client.group.effects import AskCoordinator
from raftmq.client.group.member_options import MemberOptions
from raftmq.client.group.membership import GroupMembership
from raftmq.client.group.planning import decode_subscription, encode_assignment, encode_subscription
from raftmq.wire.messages.groups import (
    Heartbeat,
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    JoinGroupReply,
    SyncGroup,
    SyncGroupReply,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.group.assignors.assignor import Key, Subscribed
    from raftmq.client.group.effects import Effect

EffectT = TypeVar("EffectT")
SESSION, HEARTBEAT, REBALANCE, POLL = 10.0, 2.0, 30.0, 60.0


def keys(text: str) -> tuple[Key, ...]:
    """ "a0 b1" as partitions."""
    return tuple((each[0], int(each[1:])) for each in text.split())


class Alone:
    """Attributes:
    effects: of the last input.
    asked: by kind of request, what was asked last.
    """

    def __init__(self, topics: str = "a", **options: Any) -> None:
        times: dict[str, Any] = {
            "session_timeout_ms": int(SESSION * 1000),
            "heartbeat_interval_ms": int(HEARTBEAT * 1000),
            "rebalance_timeout_ms": int(REBALANCE * 1000),
            "max_poll_interval_ms": int(POLL * 1000),
        }
        given = MemberOptions(group="g", **(times | options))
        self.now = 100.0
        self.membership = GroupMembership(given, topics, random=Random(1))
        self.effects: list[Effect] = []
        self.asked: dict[type, AskCoordinator] = {}

    def do(self, act: Callable[..., list[Effect]], *args: Any, **kwargs: Any) -> list[Effect]:
        """An input, now."""
        self.effects = act(*args, **kwargs, now=self.now)
        for effect in self.effects:
            if isinstance(effect, AskCoordinator):
                self.asked[type(effect.request)] = effect
        return self.effects

    def start(self) -> list[Effect]:
        return self.do(self.membership.start)

    def wait(self, seconds: float) -> list[Effect]:
        """Ticks whenever one is due; the effects of all of them."""
        end, effects = self.now + seconds, list[Any]()
        while self.membership.deadline() <= end:
            self.now = max(self.now, self.membership.deadline())
            effects += self.do(self.membership.on_tick)
        self.now = end
        self.effects = effects
        return effects

    def answer(self, kind: type, body: Any) -> list[Effect]:
        """The last request of that kind."""
        return self.do(self.membership.on_answer, self.asked[kind].token, body)

    def beat(self, body: Any = None) -> list[Effect]:
        """The next heartbeat leaves, and is answered at once."""
        self.wait(self.membership.deadline() - self.now)
        assert self.request.__class__ is Heartbeat
        return self.answer(Heartbeat, body or HeartbeatReply())

    def join(
        self, generation: int = 1, *, leader: str = "other", protocol: str = "", **fields: Any
    ) -> list[Effect]:
        """JoinGroup is answered: it is member "me"."""
        name = protocol or self.joined.protocols[0].name
        return self.answer(
            JoinGroup,
            JoinGroupReply(
                generation=generation,
                protocol=name,
                leader=leader,
                member_id="me",
                **{"keeps_filter": True, **fields},
            ),
        )

    def lead(self, generation: int = 1, **topics: str) -> list[Effect]:
        """It leads itself and others, given by what they subscribe to."""
        members = [
            JoinedMember("me", self.joined.instance_id, self.joined.protocols[0].subscription)
        ]
        members += [
            JoinedMember(name, None, encode_subscription(of)) for name, of in topics.items()
        ]
        return self.join(generation, leader="me", members=tuple(members))

    def sync(self, partitions: str, counts: dict[str, int] | None = None) -> list[Effect]:
        """SyncGroup is answered."""
        data = encode_assignment(keys(partitions), counts)
        return self.answer(SyncGroup, SyncGroupReply(assignment=data))

    def read(self, partitions: str, generation: int = 1) -> Alone:
        """From the beginning until it is stable."""
        self.start()
        self.join(generation)
        self.sync(partitions)
        return self

    def of(self, kind: type[EffectT]) -> list[EffectT]:
        """The effects of the last input that are of that kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def request(self) -> Any:
        """The only one that the last input asked; None: none."""
        asked = [one.request for one in self.of(AskCoordinator)]
        assert len(asked) <= 1, "asked several"
        return asked[0] if asked else None

    @property
    def joined(self) -> JoinGroup:
        request = self.asked[JoinGroup].request
        assert isinstance(request, JoinGroup)
        return request

    @property
    def claim(self) -> Subscribed:
        """What it said of itself when it joined last."""
        return decode_subscription(self.joined.protocols[0].subscription, member_id="me")
