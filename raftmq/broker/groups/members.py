"""Members of a group: subscriptions, sessions, static instances, ids given out, waiting requests.

Owns each member's facts, its session, and the counts that make questions about all of them cheap:
which assignors they know, how many have joined. Knows nothing of generations.

A session runs only while no request of its member waits: the client sends nothing meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from raftmq.broker.groups.phases import is_later
from raftmq.errors import FencedInstanceId, UnknownMemberId
from raftmq.wire.messages.groups import held_by_assignment, held_by_claim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.broker.groups.phases import Token
    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.groups import Key

NEVER = -1  # as a generation: the member was told of none
# A rebalance waits at least this long, also for members that ask for less: answers take time.
REBALANCE_SECONDS_MIN = 0.1


class Given(NamedTuple):
    """An id that was given out and not used yet: for which instance, and when it expires."""

    instance_id: str | None
    until: float


class MemberState:
    """Attributes:
    protocols: the assignors that it knows, with its subscription for each; its favourite first.
    is_remembered: it has not joined since this coordinator took over, and may know other assignors
        than the saved one.
    assignment: from the last plan that was saved.
    works_on: the assignment that it was told last; None once it joins again, when its claim counts.
    joining, syncing: its requests that wait; not both.
    has_come: it has joined this time, but its connection has ended: the answer went nowhere.
    heard_at: when it was heard of last.
    session_end: when it is put out, unless a request of it waits or a heartbeat comes.
    told_generation: the last one that this coordinator told it of, or found in the metadata. A
        coordinator that was lost may have told it of another one with the same number.
    join_number, commit_number: of its last JoinGroup and OffsetCommit during this ownership: a
        lower one is a late copy.
    """

    __slots__ = (
        "assignment", "client_id", "commit_number", "has_come", "heard_at", "host", "instance_id",
        "is_remembered", "join_number", "joining", "member_id", "protocols", "rebalance_timeout_ms",
        "session_end", "session_timeout_ms", "syncing", "told_generation", "works_on",
    )  # fmt: skip

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id, self.instance_id = member_id, instance_id
        self.client_id = self.host = ""
        self.session_timeout_ms = self.rebalance_timeout_ms = 0
        self.protocols: dict[str, bytes] = {}
        self.is_remembered = False
        self.assignment = b""
        self.works_on: bytes | None = None
        self.joining: Token | None = None
        self.has_come = False
        self.syncing: Token | None = None
        self.heard_at = self.session_end = math.inf
        self.told_generation = NEVER
        self.join_number = self.commit_number = 0

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    @property
    def subscription_bytes(self) -> int:
        return max(map(len, self.protocols.values()), default=0)

    def held(self, protocol: str) -> frozenset[Key]:
        """The partitions that it may work on, where `protocol` is the group's assignor."""
        if self.works_on is not None:
            return held_by_assignment(self.works_on)
        return held_by_claim(self.protocols.get(protocol, b""))

    def is_silent(self, now: float) -> bool:
        """Whether it was not heard of for as long as a rebalance may take: at least two heartbeats
        of a client of ours."""
        patience = max(REBALANCE_SECONDS_MIN, self.rebalance_timeout_ms / 1000)
        return now >= self.heard_at + patience


class Members:
    """Attributes:
    pending: ids that were given out and not used yet, in that order.
    subscription_bytes: of all members, each with its longest.
    next_end: a lower bound: no session ends and no pending id expires before.
    """

    def __init__(self, group: str) -> None:
        self.pending: dict[str, Given] = {}
        self.subscription_bytes = 0
        self.next_end = math.inf
        self._group = group
        self._members: dict[str, MemberState] = {}
        self._instances: dict[str, MemberState] = {}
        self._waiting: dict[Token, MemberState] = {}
        self._knowing: Counter[str] = Counter()  # how many members know each protocol
        self._joining = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[MemberState]:
        return iter(tuple(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> MemberState:
        return self._members[member_id]

    def get(self, member_id: str) -> MemberState | None:
        return self._members.get(member_id)

    def of_instance(self, instance_id: str) -> MemberState | None:
        return self._instances.get(instance_id)

    def refusal(self, member_id: str, instance_id: str | None) -> RaftmqError | None:
        """Why no request may be made as this member; None if it is one."""
        # A static member, three cases: the id is newer than the member's (the coordinator that gave
        # it out was lost), older (fenced), or the instance is unknown.
        if instance_id is not None:
            current = self._instances.get(instance_id)
            # Given out by a coordinator whose state was lost.
            if current is not None and is_later(member_id, current.member_id):
                return UnknownMemberId(
                    f"group {self._group}: {member_id} is not known any more: join anew"
                )
            # Another process of the instance has joined since.
            if current is not None and current.member_id != member_id:
                return FencedInstanceId(
                    f"group {self._group}: instance {instance_id} is {current.member_id} now, and"
                    f" {member_id or 'a member without id'} no more: run one process with that id"
                )
            if current is None:  # the instance was removed
                return UnknownMemberId(
                    f"group {self._group} has no instance {instance_id}: join anew"
                )
        if member_id in self._members:
            return None
        return UnknownMemberId(f"group {self._group} has no member {member_id!r}: join anew")

    # -- coming and going ------------------------------------------------------------------

    def add(self, member: MemberState) -> None:
        assert member.member_id not in self._members, f"{member.member_id} is there already"
        self._use(member.member_id, member.instance_id)
        self._members[member.member_id] = member
        if member.instance_id is not None:  # static members are found by instance, too
            assert member.instance_id not in self._instances, "an instance is one member"
            self._instances[member.instance_id] = member
        self._count(member, 1)

    def remove(self, member: MemberState) -> None:
        assert not member.is_waiting, f"{member.member_id} waits for an answer"
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._count(member, -1)

    def rename(self, member: MemberState, member_id: str) -> None:
        """Another process is this member now; its numbers and generation begin anew."""
        self._use(member_id, member.instance_id)
        del self._members[member.member_id]
        member.member_id, member.told_generation = member_id, NEVER
        member.commit_number = 0
        self._members[member_id] = member

    def _use(self, member_id: str, instance_id: str | None) -> None:
        """A used id voids the earlier ones of its instance: those processes came before, or gave
        up waiting.
        """
        if self.pending.pop(member_id, None) is None or instance_id is None:
            return
        for one, given in list(self.pending.items()):
            # Given to a process that came earlier.
            if given.instance_id == instance_id and not is_later(one, member_id):
                del self.pending[one]

    # -- what they know --------------------------------------------------------------------

    def set_protocols(self, member: MemberState, protocols: dict[str, bytes]) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def common(self, names: Iterable[str], *, without: MemberState | None) -> set[str]:
        """Which of `names` all members know; `without` is left out of the count."""
        count = len(self) - (without is not None)
        own = without.protocols if without else {}
        return {name for name in names if self._knowing[name] - (name in own) == count}

    def may_know_more(self, *, without: MemberState | None) -> bool:
        """Whether a member other than `without` has not named its assignors yet."""
        return any(one.is_remembered for one in self._members.values() if one is not without)

    def vote(self) -> str:
        """Of the protocols that all know, the one that most members prefer; among equals the one
        that was named first.
        """
        votes: dict[str, int] = {}
        # `_protocol_refusal` guarantees a common one.
        for member in self._members.values():
            favourite = next(
                name for name in member.protocols if self._knowing[name] == len(self._members)
            )
            votes[favourite] = votes.get(favourite, 0) + 1
        return max(votes, key=votes.__getitem__)

    @property
    def rebalance_seconds(self) -> float:
        """As long as the most patient member allows."""
        timeouts_ms = [member.rebalance_timeout_ms for member in self._members.values()]
        return max(REBALANCE_SECONDS_MIN, max(timeouts_ms, default=0) / 1000)

    def _count(self, member: MemberState, by: int) -> None:
        for name in member.protocols:
            self._knowing[name] += by
            if not self._knowing[name]:  # a counter must not keep names that no member knows
                del self._knowing[name]
        self.subscription_bytes += by * member.subscription_bytes

    # -- who waits -------------------------------------------------------------------------

    @property
    def have_all_joined(self) -> bool:
        """And no newcomer is about to. A returning static member counts as the member it was."""
        return self._joining == len(self._members) and all(
            given.instance_id in self._instances for given in self.pending.values()
        )

    def wait_join(self, member: MemberState, token: Token) -> None:
        assert not member.is_waiting, f"{member.member_id} waits already"
        member.joining, member.has_come, member.works_on = token, False, None
        self._joining += 1
        self._waiting[token] = member

    def wait_sync(self, member: MemberState, token: Token) -> None:
        assert not member.is_waiting, f"{member.member_id} waits already"
        member.syncing = token
        self._waiting[token] = member

    def end_wait(self, member: MemberState) -> Token:
        token = member.joining if member.joining is not None else member.syncing
        assert token is not None, f"{member.member_id} does not wait"
        self._joining -= member.joining is not None
        member.joining = member.syncing = None
        del self._waiting[token]
        return token

    def forget(self, member: MemberState) -> None:
        """Its connection has ended. A newcomer owns nothing that others would have to respect."""
        member.has_come = member.joining is not None and member.told_generation != NEVER
        self.end_wait(member)

    def waiter(self, token: Token) -> MemberState | None:
        return self._waiting.get(token)

    # -- time ------------------------------------------------------------------------------

    def start_session(self, member: MemberState, now: float) -> None:
        member.heard_at = now
        member.session_end = now + member.session_timeout_ms / 1000
        self.next_end = min(self.next_end, member.session_end)

    def expect(self, member_id: str, instance_id: str | None, until: float) -> None:
        self.pending[member_id] = Given(instance_id, until)
        self.next_end = min(self.next_end, until)

    def expects(self, member_id: str, instance_id: str | None) -> bool:
        given = self.pending.get(member_id)
        return given is not None and given.instance_id == instance_id

    def drop_pending(self, now: float) -> bool:
        """Remove expired ids; whether there were any."""
        expired = [member_id for member_id, given in self.pending.items() if given.until <= now]
        for member_id in expired:
            del self.pending[member_id]
        return bool(expired)

    def silent(self, now: float) -> list[MemberState]:
        return [m for m in self._members.values() if m.session_end <= now and not m.is_waiting]

    def look_ahead(self) -> None:
        """Compute `next_end` anew: heartbeats move the true end away from the bound."""
        ends = [m.session_end for m in self._members.values() if not m.is_waiting]
        self.next_end = min([*ends, *self._pending_ends()], default=math.inf)

    def _pending_ends(self) -> Iterator[float]:
        return (given.until for given in self.pending.values())

    def check(self) -> None:
        members = tuple(self._members.values())
        assert self._joining == sum(m.joining is not None for m in members), "joins are counted"
        tokens = {t for m in members for t in (m.joining, m.syncing) if t is not None}
        assert tokens == self._waiting.keys(), "every waiting request has a token"
        assert all(self._members[m.member_id] is m for m in members), "a member under another id"
        static = {m.instance_id: m for m in members if m.instance_id is not None}
        assert static == self._instances, "instances"
        assert not self.pending.keys() & self._members.keys(), "pending, and in the group"
        assert not members or self.common(self._knowing, without=None), "nothing in common"
        assert self._knowing == Counter(name for m in members for name in m.protocols), "counted"
        assert self.subscription_bytes == sum(m.subscription_bytes for m in members), "bytes"
        ends = [m.session_end for m in members if not m.is_waiting]
        assert self.next_end <= min([*ends, *self._pending_ends()], default=math.inf), "late"
