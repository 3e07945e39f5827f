"""A group member's inputs and what they lead to; the invariants M1 to M6 of membership. Pure.

Each input returns what is to be done (`effects.py`), in order; after each, `deadline` says when
`on_tick` is due at the latest. `now` is a monotonic clock in seconds. The steps from one state to
another are in `member.py`; here is what holds after every one of them.

Invariants:
  M1  One step of joining or leaving is in flight at a time, and one heartbeat; other answers are
      dropped.
  M2  A held partition came with an answered SyncGroup, and was neither revoked nor lost since.
  M3  Nothing is held once the coordinator may reassign it, by this member's own clock
      (`member.py`).
  M4  An eager member joins holding nothing.
  M5  A member that is outside, leaving or fenced holds nothing; one that is outside or fenced has
      no request in flight.
  M6  A partition that is being revoked is held, and named as owned, until the program has finished
      with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raftmq.client.group.effects import State, WatchTopics
from raftmq.client.group.member import VERDICTS, MemberRules, error_in
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect
    from raftmq.client.group.member import Reply
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.errors import RaftmqError


# The states in which the coordinator may count it as a member that takes part.
_IN = (State.JOINING, State.SYNCING, State.STABLE, State.REVOKING)


class GroupMembership:
    """One member of a group.

    Args:
        topics: what it subscribes to, by name; `pattern.py` resolves patterns.
        random: for backoff.
    """

    def __init__(self, options: MemberOptions, topics: Iterable[str], *, random: Random) -> None:
        self._member = MemberRules(options, topics, random)
        self._watched: tuple[str, ...] = ()

    # -- what the program does -------------------------------------------------------------

    def start(self, *, now: float) -> list[Effect]:
        """Join. Called once."""
        assert self.state is State.OUTSIDE, "started twice"
        return self._run(self._member.join, now)

    def subscribe(self, topics: Iterable[str], *, now: float) -> list[Effect]:
        """Subscribe to these instead: a changed subscription leads to a rebalance."""
        self._member.topics = tuple(sorted(set(topics)))
        return self._run(self._member.maybe_rejoin, now)

    def leave(self, *, now: float) -> list[Effect]:
        """Give up everything, and leave, except for static members, which may come back. Ends with
        Left, or with Fail; nothing follows.
        """
        self._member.is_closing = True
        return self._run(self._member.close, now)

    def on_revoked(self, token: int, *, now: float) -> list[Effect]:
        """The program has finished the records of what Revoke named, and that is committed."""
        return self._run(lambda now: self._member.on_revoked(token, now), now)

    def on_handed_out(self, *, now: float) -> list[Effect]:
        """The program has got records, and must ask for more within `max_poll_interval_ms`. The end
        of a `processing` block counts as well.
        """
        self._member.busy_since = now
        return self._run(_nothing, now)

    def on_asked(self, *, now: float) -> list[Effect]:
        """The program asks for records, or is in a `processing` block: the poll interval does not
        count. A member that had left because of it joins again.
        """
        self._member.busy_since = None
        return self._run(self._member.come_back, now)

    # -- what comes from outside -----------------------------------------------------------

    def on_answer(self, token: int, answer: Reply | RaftmqError, *, now: float) -> list[Effect]:
        """The outcome of an AskCoordinator: the answer's body, or why there is none.

        A missing answer is noticed in `on_tick`.
        """
        asked = self._member.requests.take(token)
        if asked is None:  # outdated: the step was repeated or dropped
            return []
        error = error_in(answer)
        self._member.learn(asked, error)
        lost = self._member.maybe_lose(now)  # the session had ended: join anew
        return self._finish(lost or self._member.on_answer(asked, answer, error, now), now)

    def on_metadata(self, counts: Mapping[str, int], *, now: float) -> list[Effect]:
        """Partition counts by topic; 0: there certainly is no such topic.

        Topics that are not named keep their last count.
        """
        self._member.planning.learn(counts)
        return self._run(self._member.on_counts, now)

    def on_refused(self, error: RaftmqError, *, generation: int, now: float) -> list[Effect]:
        """A commit, or an OffsetFetch, was refused; `generation`: the one it was sent with. Errors
        that say nothing of membership have no effect.
        """
        is_current = generation == self.generation != ABSENT
        # A late answer of an earlier generation
        if not is_current or not isinstance(error, VERDICTS):
            return self._run(_nothing, now)
        return self._run(lambda now: self._member.on_verdict(error, now), now)

    def on_tick(self, *, now: float) -> list[Effect]:
        """Time has passed."""
        return self._run(self._member.tick, now)

    # -- state -----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._member.state

    @property
    def member_id(self) -> str:
        """Assigned by the coordinator; empty before and after membership."""
        return self._member.member_id

    @property
    def generation(self) -> int:
        """To commit with; -1: in none."""
        return self._member.generation

    @property
    def protocol(self) -> str:
        """The assignor that the group has agreed on; empty before."""
        return self._member.protocol

    @property
    def topics(self) -> tuple[str, ...]:
        """What it subscribes to."""
        return self._member.topics

    @property
    def is_leader(self) -> bool:
        """Whether it plans for the group."""
        return self._member.planning.is_leader

    @property
    def held(self) -> frozenset[Key]:
        """Its partitions, including those that are being revoked."""
        return self._member.owned_partitions.held

    @property
    def held_until(self) -> float:
        """When all partitions are lost, unless the coordinator answers before."""
        return self._member.session.ends_at

    def may_hand_out(self, partition: Key, *, now: float) -> bool:
        """Checked before records are handed out, as a late tick notices a lost session late."""
        owned_partitions = self._member.owned_partitions
        is_kept = partition in owned_partitions.held and partition not in owned_partitions.revoking
        return is_kept and now < self.held_until

    def expects(self, token: int) -> bool:
        """Whether an answer would still be used; otherwise the request may be cancelled."""
        return self._member.requests.expects(token)

    def deadline(self) -> float:
        """When `on_tick` is due at the latest; math.inf: not before another input."""
        return self._member.look_at

    # -- inside ----------------------------------------------------------------------------

    def _run(self, act: Callable[[float], list[Effect]], now: float) -> list[Effect]:
        """Apply timeouts first, then the input."""
        lost = self._member.maybe_lose(now)
        return self._finish([*lost, *act(now)], now)

    def _finish(self, effects: list[Effect], now: float) -> list[Effect]:
        if self.state in _IN:
            watched = self._member.planning.topics(self.topics)
            if watched != self._watched:  # as leader it needs the topics of all members
                self._watched = watched
                effects = [*effects, WatchTopics(watched)]
        self._check(now)
        return effects

    def _check(self, now: float) -> None:
        held, state, requests = self.held, self.state, self._member.requests
        assert state in _IN or not held, f"M5: {state.name}, and holds {len(held)}"
        is_out = state in (State.OUTSIDE, State.FENCED)
        assert not is_out or requests.look_at == math.inf, f"M5: {state.name}, and awaits something"
        assert not held or now < self._member.session.ends_at, "M3: held for too long"
        is_joining = state in (State.JOINING, State.SYNCING)
        is_eager = not self._member.owned_partitions.is_cooperative
        assert not (is_joining and is_eager and held), "M4: joins, and holds"
        is_revoking = bool(self._member.owned_partitions.revoking)
        assert is_revoking == (state is State.REVOKING), "M6: revokes nothing, or unnoticed"


def _nothing(_now: float) -> list[Effect]:
    return []
