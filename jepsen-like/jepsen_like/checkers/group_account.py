"""What consumer groups did, out of the same pass over a history: ownership, hand-outs, commits.

Owns the pairing of commits and fetches of offsets with their completions (by number: a member has
several in flight), and of hand-outs with the owner of the partition at that time. Judges nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from jepsen_like.checkers.group_columns import (
    NEVER,
    NOTHING,
    Commit,
    End,
    Fetch,
    Group,
    Ownership,
    Taken,
)
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.history.event import Event


class GroupAccount:
    """
    Args:
        on_taken: called with each hand-out, and its key.

    Attributes:
        groups: by name.
        taken_count: records that were handed out.
    """

    def __init__(self, on_taken: Callable[[str, Taken], None]) -> None:
        self._on_taken = on_taken
        self.groups: dict[str, Group] = {}
        self.taken_count = 0
        self._of_member: dict[str, Group] = {}
        self._held: dict[str, dict[str, Ownership]] = defaultdict(dict)
        self._heard: dict[str, dict[str, int]] = defaultdict(dict)
        self._asked: dict[str, int] = {}  # members that wait for records, since when
        self._open: dict[int, Event] = {}  # by number
        self._takes: dict[str, Callable[[Event], None]] = {
            "group": self._group,
            "member": self._member,
            "rebalance": self._rebalance,
            "take": self._take,
            "commit": self._attempt,
            "committed": self._attempt,
            "leave": self._leave,
            "crash": self._crash,
        }

    def take(self, event: Event) -> None:
        """Events that are not about groups are skipped."""
        if event.f in self._takes:
            self._takes[event.f](event)

    def end(self) -> None:
        """Attempts without a completion may have happened."""
        for began in self._open.values():
            if began.f == "commit":
                self._commit(began, None)
        self._open.clear()

    def _group(self, event: Event) -> None:
        told = event.value
        self.groups[told["group"]] = Group(told["group"], told["commit"], tuple(told["keys"]))

    def _member(self, event: Event) -> None:
        self._of_member[str(event.process)] = self.groups[event.value["group"]]

    # -- who has what ----------------------------------------------------------------------

    def _rebalance(self, event: Event) -> None:
        member, told = str(event.process), event.value
        for end in (End.REVOKED, End.LOST):
            for key in told.get(end.value, ()):
                self._end_ownership(member, key, event.index, end)
        for key in told.get("assigned", ()):
            self._own(member, key, told["generation"], event.index)

    def _own(self, member: str, key: str, generation: int, event: int) -> None:
        group = self._of_member[member]
        group.generations.add(generation)
        start = self._heard[member].get(key)
        own = self._held[member][key] = Ownership(member, key, generation, event, start)
        group.ownerships.setdefault(key, []).append(own)

    def _end_ownership(self, member: str, key: str, event: int, end: End) -> None:
        """A member may lose a partition before it was notified that it owned it."""
        own = self._held[member].pop(key, None)
        if own is not None:
            own.ended, own.end = event, end

    def _leave(self, event: Event) -> None:
        self._end_all(event, End.LEFT)

    def _crash(self, event: Event) -> None:
        self._end_all(event, End.CRASHED)

    def _end_all(self, event: Event, end: End) -> None:
        member = str(event.process)
        for key in list(self._held[member]):
            self._end_ownership(member, key, event.index, end)
        self._asked.pop(member, None)

    def _take(self, event: Event) -> None:
        member = str(event.process)
        if event.type is Type.INVOKE:
            self._asked[member] = event.index
            return
        invoked = self._asked.pop(member, event.index)
        told = event.value
        if event.type is not Type.OK or not told["offsets"]:
            return
        offsets, values = tuple(told["offsets"]), tuple(told["values"])
        if len(offsets) != len(values):
            raise ValueError(f"{len(offsets)} offsets of {len(values)} values")
        taken = Taken(member, invoked, event.index, offsets, values)
        self.taken_count += len(offsets)
        self._on_taken(told["key"], taken)
        own = self._held[member].get(told["key"])
        if own is None:
            self._of_member[member].unowned.append((told["key"], taken))
        else:
            own.taken.append(taken)

    # -- offsets ---------------------------------------------------------------------------

    def _attempt(self, event: Event) -> None:
        number = event.value["number"]
        if event.type is Type.INVOKE:
            self._open[number] = event
            return
        began = self._open.pop(number)
        if began.f == "commit":
            self._commit(began, event)
        elif event.type is Type.OK:
            self._fetched(began, event)

    def _commit(self, began: Event, ended: Event | None) -> None:
        asked: dict[str, Any] = began.value
        outcome = Type.INFO if ended is None else ended.type
        self.groups[asked["group"]].commits.append(
            Commit(
                member=str(began.process),
                generation=asked["generation"],
                offsets=dict(asked["offsets"]),
                invoked=began.index,
                completed=NEVER if ended is None or outcome is Type.INFO else ended.index,
                outcome=outcome,
            )
        )

    def _fetched(self, began: Event, ended: Event) -> None:
        group, member = self.groups[began.value["group"]], str(began.process)
        found = {key: NOTHING if at is None else at for key, at in ended.value["offsets"]}
        group.fetches.append(Fetch(member, found, began.index, ended.index))
        self._heard[member].update(found)
