"""Moving partitions from who has much to who has little, over others where it takes that. Pure.

A member can give to another one what it has of a pool to which both subscribe. Whoever has least is
served first: once nobody that can give to it, directly or over others, has two more, that is
so for all of those for good, and they are left alone. So what comes out is as even as subscriptions
allow (an optimal semi-matching: Harvey, Ladner, Lovász, Tamir, 2006).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from raftmq.client.group.assignors.dealing import Dealing


class Step(NamedTuple):
    """To whom a member gives, and of which pool."""

    receiver: int
    pool: int


def balance(dealing: Dealing) -> None:
    search = _Search(dealing)
    poorest = [(load, member) for member, load in enumerate(dealing.loads)]
    heapify(poorest)
    while poorest:
        load, member = heappop(poorest)
        if load != dealing.loads[member] or member in search.settled:
            continue  # it was served meanwhile
        giver = search.giver_to(member)
        if giver is None:
            search.settled.update(search.steps)
            continue
        _move(dealing, search, giver)
        for each in (giver, member):
            heappush(poorest, (dealing.loads[each], each))


def _move(dealing: Dealing, search: _Search, giver: int) -> None:
    """One partition along the way that was found, each member handing on another one."""
    dealing.loads[giver] -= 1
    while (step := search.steps[giver]) is not None:
        pool = dealing.pools[step.pool]
        key = pool.take_from(giver)
        giver = step.receiver
        pool.parts.setdefault(giver, []).append(key)
        search.on_given(step.pool, giver)
    dealing.loads[giver] += 1


class _Search:
    """Attributes:
    settled: these get no more, and have nothing to spare for those that come later.
    steps: of the last search: how what each member reached could give comes to the receiver.
    """

    def __init__(self, dealing: Dealing) -> None:
        self._loads, self._pools, self.settled = dealing.loads, dealing.pools, set[int]()
        self.steps: dict[int, Step | None] = {}
        self._pools_of: list[list[int]] = [[] for _ in dealing.loads]
        for number, pool in enumerate(dealing.pools):
            for member in pool.subscribers:
                self._pools_of[member].append(number)
        # Of each pool who has of it, the richest first; outdated where somebody has given since.
        # Who was served is never rich again: by then everybody has as much.
        self._rich = [[(-self._loads[each], each) for each in pool.parts] for pool in self._pools]
        for rich in self._rich:
            heapify(rich)

    def on_given(self, pool: int, member: int) -> None:
        """It has something of that pool."""
        heappush(self._rich[pool], (-self._loads[member], member))

    def giver_to(self, receiver: int) -> int | None:
        """The richest of the nearest that have at least two more."""
        enough = self._loads[receiver] + 2
        self.steps = {receiver: None}
        richest = [(*self._richest_of(number), number) for number in self._pools_of[receiver]]
        load, giver, pool = min(richest, default=(0, receiver, 0))
        if -load >= enough:
            self.steps[giver] = Step(receiver, pool)
            return giver
        return self._distant_giver_to(receiver, enough)

    def _richest_of(self, number: int) -> tuple[int, int]:
        """Its load, negative, and who it is."""
        rich, parts = self._rich[number], self._pools[number].parts
        while rich:
            load, member = rich[0]
            if member not in parts:
                heappop(rich)
            elif -load != self._loads[member]:
                heapreplace(rich, (-self._loads[member], member))
            else:
                return rich[0]
        return 0, ABSENT

    def _distant_giver_to(self, receiver: int, enough: int) -> int | None:
        seen: set[int] = set()
        level = [receiver]
        while level and max(self._loads) >= enough:
            level = self._givers_to(level, seen)
            best = max(level, key=self._loads.__getitem__, default=receiver)
            if self._loads[best] >= enough:
                return best
        return None

    def _givers_to(self, level: list[int], seen: set[int]) -> list[int]:
        """Who can give to one of `level`, and was not reached before."""
        reached: list[int] = []
        for receiver in level:
            for number in self._pools_of[receiver]:
                if number in seen:
                    continue
                seen.add(number)
                for giver in self._pools[number].parts:
                    if giver not in self.steps and giver not in self.settled:
                        self.steps[giver] = Step(receiver, number)
                        reached.append(giver)
        return reached
