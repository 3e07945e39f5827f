"""What members and drivers of shared transactions did, out of the same pass over a history.

Owns the listings: which members a commit of a version names, and what is known of its outcome; and
the joins and aborts by which a member was left out for good. Judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.checkers.transaction_columns import NEVER, Owner, Told, Transaction
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jepsen_like.history.event import Event

OF_VERSIONS = frozenset({"join", "commit-version", "abort-version"})


class VersionKey(NamedTuple):
    id: str
    lineage: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of {self.id!r}, lineage {self.lineage!r}"


@dataclass(eq=False)
class Listing:
    """The same members in one commit, however often it was asked.

    Attributes:
        asked: first, in this event.
        counts: of rows, as they were asked.
        told: `BEFORE`: another listing is committed. `told_at`: in this event.
        failed: how many of `asked_count` answers say that it certainly is not committed.
    """

    key: VersionKey
    members: tuple[int, ...]
    asked: int
    asked_count: int = 0
    counts: set[int] = field(default_factory=set)
    told: Told = Told.UNKNOWN
    told_at: float = NEVER
    failed: int = 0

    @property
    def may_have_happened(self) -> bool:
        return self.told in (Told.COMMITTED, Told.UNKNOWN)

    def __str__(self) -> str:
        return (
            f"a commit of {self.key} with the members {list(self.members)}, asked in event "
            f"{self.asked} ({self.told})"
        )


class Done(NamedTuple):
    """Somebody was told that a version is committed. `rows`: where they are known."""

    key: VersionKey
    invoked: int
    completed: int
    is_join: bool
    rows: int | None


class Opened(NamedTuple):
    """A join that was answered so, or an abort: `key` is open, or is aborted."""

    key: VersionKey
    invoked: int
    completed: int


class SharedAccount:
    """
    Attributes:
        listings: in the order in which they were first asked.
        keys: of each member, by its number.
        dones: who was told that a version is committed, in order.
        joined, aborted: in order; `joined` without those that were told so.
    """

    def __init__(self, by_number: dict[int, Transaction]) -> None:
        self._by_number = by_number
        self._listings: dict[tuple[VersionKey, tuple[int, ...]], Listing] = {}
        self._listing_of: dict[int, Listing] = {}
        self.keys: dict[int, VersionKey] = {}
        self.dones: list[Done] = []
        self.joined: list[Opened] = []
        self.aborted: list[Opened] = []
        self._joins: dict[int, Opened] = {}

    @property
    def listings(self) -> Iterator[Listing]:
        return iter(self._listings.values())

    # -- the pass --------------------------------------------------------------------------

    def on_invoke(self, event: Event) -> None:
        if event.f != "commit-version":
            return
        listing = self._listing(event.value, event.index)
        listing.asked_count += 1
        listing.counts.add(event.value["count"])
        for number in listing.members:
            if self._listing_of.setdefault(number, listing) is not listing:
                raise ValueError(f"member {number} is listed in two ways")

    def on_end(self, began: Event, event: Event) -> None:
        key = _key(began.value)
        if began.f == "join":
            self._join(key, began, event)
        elif began.f == "commit-version":
            self._commit(key, began, event)
        elif event.type is Type.OK:
            self.aborted.append(Opened(key, began.index, event.index))

    def _join(self, key: VersionKey, began: Event, event: Event) -> None:
        if event.type is not Type.OK:
            return
        number, is_done = began.value["tx"], event.value["is_done"]
        if number in self._by_number:
            raise ValueError(f"transaction {number} has begun before")
        owner = Owner(event.process, key.id, began.index, event.index)
        one = Transaction(number, owner, key.version, event.index, is_done, is_member=True)
        self._by_number[number], self.keys[number] = one, key
        if is_done:
            self.dones.append(Done(key, began.index, event.index, True, None))
        else:
            self._joins[number] = Opened(key, began.index, event.index)
            self.joined.append(self._joins[number])

    def _commit(self, key: VersionKey, began: Event, event: Event) -> None:
        listing = self._listing(began.value, began.index)
        if event.type is Type.FAIL:
            listing.failed += 1
        elif event.type is Type.OK:
            if not event.value["is_repeated"]:
                listing.told = Told.COMMITTED
            listing.told_at = min(listing.told_at, event.index)
            count = event.value.get("count")
            self.dones.append(Done(key, began.index, event.index, False, count))

    def _listing(self, value: dict[str, Any], event: int) -> Listing:
        key, members = _key(value), tuple(sorted(value["members"]))
        return self._listings.setdefault((key, members), Listing(key, members, event))

    def end(self) -> None:
        """What is known of each member in the end."""
        certain = {one.key for one in self.listings if one.told is Told.COMMITTED}
        for listing in self.listings:
            if listing.told is Told.UNKNOWN and listing.key in certain:
                listing.told = Told.BEFORE
            elif listing.told is Told.UNKNOWN and listing.failed == listing.asked_count:
                listing.told = Told.ABORTED
            for number in listing.members:
                one = self._by_number[number]
                one.commit_asked, one.told = listing.asked, listing.told
                one.told_at = one.over_at = listing.told_at

    # -- what is known of it ---------------------------------------------------------------

    def of(self, listing: Listing) -> list[Transaction]:
        return [self._by_number[number] for number in listing.members]

    def closed(self, listing: Listing) -> Opened | None:
        """What had ended a member of it for certain before anybody asked for its commit: an abort,
        or a higher version that was begun.
        """
        # A commit does not name those that have sent nothing.
        writers = (one.number for one in self.of(listing) if one.sent)
        joins = [self._joins[number] for number in writers if number in self._joins]
        return next(
            (
                other
                for other in self._ending(listing.key)
                if other.completed < listing.asked
                and any(join.completed < other.invoked for join in joins)
            ),
            None,
        )

    def _ending(self, key: VersionKey) -> Iterator[Opened]:
        yield from (one for one in self.aborted if one.key == key)
        for one in self.joined:
            if one.key[:2] == key[:2] and one.key.version > key.version:
                yield one


def _key(value: Mapping[str, Any]) -> VersionKey:
    return VersionKey(value["id"], value["lineage"], value["version"])
