"""One member of a consumer group, without I/O: what it may be told, and what it wants done.

Each input returns what is to be done (`effects.py`), in order; after each, `deadline` says when
`on_tick` is due at the latest. `now` is a monotonic clock in seconds and never goes back. The moves
from one state to another are `member.py`'s; here stands what holds after every one of them.

Invariants:
  M1  One step of joining or leaving is out at a time, and one heartbeat; whatever else is answered
      is dropped.
  M2  What is held came with an answered SyncGroup, and was neither revoked nor lost since.
  M3  Nothing is held once the coordinator may give it away, by this member's own clock
      (`member.py`).
  M4  An eager member joins holding nothing.
  M5  Who is outside, leaving or fenced holds nothing; who is outside or fenced awaits nothing.
  M6  What is being revoked is held, and said to be, until the program has finished with it.
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


_IN = (State.JOINING, State.SYNCING, State.STABLE, State.REVOKING)


class GroupMembership:
    """
    Args:
        topics: what it subscribes to, by name; patterns are resolved by whoever knows all topics.
        random: for pauses.
    """

    def __init__(self, options: MemberOptions, topics: Iterable[str], *, random: Random) -> None:
        self._member = MemberRules(options, topics, random)
        self._watched: tuple[str, ...] = ()

    # -- what the program does -------------------------------------------------------------

    def start(self, *, now: float) -> list[Effect]:
        """Join. Once."""
        assert self.state is State.OUTSIDE, "started twice"
        return self._run(self._member.join, now)

    def subscribe(self, topics: Iterable[str], *, now: float) -> list[Effect]:
        """To these instead: if they are others, the group deals anew."""
        self._member.topics = tuple(sorted(set(topics)))
        return self._run(self._member.maybe_rejoin, now)

    def leave(self, *, now: float) -> list[Effect]:
        """Give everything up, and leave, but for static members, who may come back. It ends with
        Left, or with Fail; nothing follows.
        """
        self._member.is_closing = True
        return self._run(self._member.close, now)

    def on_revoked(self, token: int, *, now: float) -> list[Effect]:
        """The program has finished with what Revoke named, and that is committed."""
        return self._run(lambda now: self._member.on_revoked(token, now), now)

    def on_handed_out(self, *, now: float) -> list[Effect]:
        """The program has got records, and should ask for more before `max_poll_interval_ms` is
        over. The end of a `processing` block counts as well.
        """
        self._member.busy_since = now
        return self._run(_nothing, now)

    def on_asked(self, *, now: float) -> list[Effect]:
        """The program asks for records, or says that it is processing: it takes as long as it may
        take. Who has left because it did not ask joins again.
        """
        self._member.busy_since = None
        return self._run(self._member.come_back, now)

    # -- what comes from outside -----------------------------------------------------------

    def on_answer(self, token: int, answer: Reply | RaftmqError, *, now: float) -> list[Effect]:
        """What came of an Ask: the body of the answer, whatever it says, or why there is none.

        No answer at all is dealt with in `on_tick`.
        """
        asked = self._member.requests.take(token)
        if asked is None:
            return []
        error = error_in(answer)
        self._member.learn(asked, error)
        lost = self._member.maybe_lose(now)  # then everything begins anew
        return self._finish(lost or self._member.on_answer(asked, answer, error, now), now)

    def on_metadata(self, counts: Mapping[str, int], *, now: float) -> list[Effect]:
        """Topics and how many partitions they have; 0: it is certain that there is no such topic.

        What is not named stays as it was told last.
        """
        self._member.planning.learn(counts)
        return self._run(self._member.on_counts, now)

    def on_refused(self, error: RaftmqError, *, generation: int, now: float) -> list[Effect]:
        """Why a commit, or a question for committed offsets, was refused; `generation`: with which
        it was asked. What says nothing of membership does nothing here.
        """
        is_current = generation == self.generation != ABSENT
        if not is_current or not isinstance(error, VERDICTS):
            return self._run(_nothing, now)
        return self._run(lambda now: self._member.on_verdict(error, now), now)

    def on_tick(self, *, now: float) -> list[Effect]:
        """Time has passed."""
        return self._run(self._member.tick, now)

    # -- what to know ----------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._member.state

    @property
    def member_id(self) -> str:
        """Given by the coordinator; empty: not yet, or not any more."""
        return self._member.member_id

    @property
    def generation(self) -> int:
        """To commit with; -1: in none."""
        return self._member.generation

    @property
    def protocol(self) -> str:
        """The assignor that the group has agreed on; empty: none yet."""
        return self._member.protocol

    @property
    def topics(self) -> tuple[str, ...]:
        """What it subscribes to."""
        return self._member.topics

    @property
    def is_leader(self) -> bool:
        """Whether it deals out for the group."""
        return self._member.planning.is_leader

    @property
    def held(self) -> frozenset[Key]:
        """What it has, including what is being revoked."""
        return self._member.holdings.held

    @property
    def held_until(self) -> float:
        """When all that is held is lost, if nothing is heard until then."""
        return self._member.session.ends_at

    def may_hand_out(self, partition: Key, *, now: float) -> bool:
        """To be asked before records are handed out, as a late tick notices late."""
        holdings = self._member.holdings
        is_kept = partition in holdings.held and partition not in holdings.revoking
        return is_kept and now < self.held_until

    def expects(self, token: int) -> bool:
        """Whether an answer to that would still be taken; else asking may be broken off."""
        return self._member.requests.expects(token)

    def deadline(self) -> float:
        """When `on_tick` is due at the latest; endless: not before another input."""
        return self._member.look_at

    # -- inside ----------------------------------------------------------------------------

    def _run(self, act: Callable[[float], list[Effect]], now: float) -> list[Effect]:
        """Whatever is told, time comes first."""
        lost = self._member.maybe_lose(now)
        return self._finish([*lost, *act(now)], now)

    def _finish(self, effects: list[Effect], now: float) -> list[Effect]:
        if self.state in _IN:
            watched = self._member.planning.topics(self.topics)
            if watched != self._watched:
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
        is_eager = not self._member.holdings.is_cooperative
        assert not (is_joining and is_eager and held), "M4: joins, and holds"
        is_revoking = bool(self._member.holdings.revoking)
        assert is_revoking == (state is State.REVOKING), "M6: revokes nothing, or unnoticed"


def _nothing(_now: float) -> list[Effect]:
    return []
