"""What producers with transactions did, out of the same pass over a history.

Owns which send, poll and end belongs to which transaction, what is known of its outcome, and what
readers and logs tell of each of its values. Judges nothing.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from jepsen_like.checkers.columns import Session
from jepsen_like.checkers.transaction_columns import (
    NEVER,
    NO_VERSION,
    GroupOffset,
    Input,
    Mark,
    Owner,
    Poll,
    Sent,
    Stroke,
    Told,
    Transaction,
    told_of,
)
from jepsen_like.checkers.transaction_listings import OF_VERSIONS, SharedAccount
from jepsen_like.checkers.transaction_log import marks_of
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from jepsen_like.checkers.columns import KeyAccount, Read, Send, Value
    from jepsen_like.history.event import Event, Process

OF_TRANSACTIONS = frozenset({"open", "begin", "end", "resolve", *OF_VERSIONS})
GroupKey: TypeAlias = tuple[str, str]


class TransactionAccount:
    """
    Args:
        keys: of the whole account, which fills them meanwhile.

    Attributes:
        owners: by id, in the order in which they began to open it.
        by_number: all transactions, in the order in which they began; each member of a version is
            one.
        shared: which of these are committed together.
        stable: the last observation of offsets when no client was left; None: there was none.
        unsettled: ids of commits that were still remembered then.
        group_offsets: what groups had committed at the end; None: nobody asked.
        installed: snapshots of the quorum that nodes have installed.
        polls: outside of transactions, by process.
        times: seconds, by event.
        strokes: faults that began.
        final_keys: those that the last readers at the committed level read from the beginning, and
            of which none did not come to the end.
    """

    def __init__(self, keys: Mapping[str, KeyAccount]) -> None:
        self._keys = keys
        self.owners: dict[str, list[Owner]] = {}
        self.by_number: dict[int, Transaction] = {}
        self.shared = SharedAccount(self.by_number)
        self.stable: list[tuple[str, int, int]] | None = None
        self.unsettled: list[str] = []
        self.group_offsets: dict[GroupKey, int] | None = None
        self.installed = 0
        self.polls: dict[Process, list[Poll]] = defaultdict(list)
        self.times: list[float] = []
        self.strokes: list[Stroke] = []
        self.final_keys: set[str] = set()
        self.final = NEVER
        self._of_process: dict[Process, Owner] = {}
        self._reader: dict[int, int] = {}  # number of the transaction, by the event of its poll
        self._sessions: dict[tuple[Process, object], Session] = {}

    def __bool__(self) -> bool:
        return bool(self.by_number)

    # -- the pass --------------------------------------------------------------------------

    def on_invoke(self, event: Event) -> None:
        if event.f in OF_VERSIONS:
            self.shared.on_invoke(event)
        elif event.f == "open":
            owner = Owner(event.process, event.value["id"], event.index)
            self.owners.setdefault(owner.id, []).append(owner)
            self._of_process[event.process] = owner
        elif event.f == "end":
            one = self.by_number[event.value["tx"]]
            one.offsets = [GroupOffset(*told) for told in event.value.get("offsets", ())]
            if event.value["commit"]:
                one.commit_asked = min(one.commit_asked, event.index)

    def on_end(self, began: Event, event: Event) -> None:
        if event.f in OF_VERSIONS:
            self.shared.on_end(began, event)
        elif event.f == "open":
            if event.type is Type.OK:
                self._of_process[event.process].completed = event.index
        elif event.f == "begin":
            self._begin(event)
        else:
            one = self.by_number[began.value["tx"]]
            told = told_of(event.type, (event.value or {}).get("outcome"))
            one.over_at = event.index
            if told is not Told.UNKNOWN:
                one.told, one.told_at = told, event.index

    def _begin(self, event: Event) -> None:
        told, owner = event.value, self._of_process[event.process]
        if told["tx"] in self.by_number:
            raise ValueError(f"transaction {told['tx']} has begun before")
        version = NO_VERSION if told.get("version") is None else told["version"]
        one = Transaction(told["tx"], owner, version, event.index, told.get("is_done", False))
        self.by_number[one.number] = one

    def on_send(self, event: Event, send: Send) -> None:
        asked = event.value
        send.transaction = asked["tx"]
        one = self.by_number[asked["tx"]]
        inputs = asked.get("of") or [None] * len(send.values)
        for value, of in zip(send.values, inputs, strict=True):
            one.sent.append(Sent(asked["key"], value, send, of and Input(*of)))

    def session(self, process: Process, number: object) -> Session:
        """Of a poll in a transaction. Without a number nothing is known of the position."""
        if number is None:
            return Session(process)
        return self._sessions.setdefault((process, number), Session(process))

    def on_poll(self, began: Event, event: Event) -> None:
        value = event.value or {}
        if began.value and "tx" in began.value:
            self._reader[began.index] = began.value["tx"]
        elif event.type is Type.OK:
            keys = frozenset(key for key, records in value.get("records", ()) if records)
            poll = Poll(event.process, began.index, event.index, keys)
            self.polls[event.process].append(poll)

    def on_stable(self, event: Event) -> None:
        self.stable = [(key, lso, end) for key, lso, end in event.value["ends"]]
        self.unsettled = list(event.value.get("unsettled", ()))

    def on_group_offsets(self, event: Event) -> None:
        told = (GroupOffset(*one) for one in event.value["offsets"])
        self.group_offsets = {(one.group, one.key): one.offset for one in told}

    def on_installed(self, _: Event) -> None:
        self.installed += 1

    def on_fault(self, event: Event) -> None:
        nodes = frozenset((event.value or {}).get("nodes", ()))
        self.strokes.append(Stroke(event.f, event.index, nodes))

    def on_skipped(self, event: Event) -> None:
        """The last one of that kind did not happen."""
        for place in range(len(self.strokes) - 1, -1, -1):
            if self.strokes[place].f == event.f:
                del self.strokes[place]
                return

    def end(self, phases: Mapping[str, int], behind: Collection[str]) -> None:
        self.final = phases.get("final", NEVER)
        self.final_keys -= set(behind)
        self.shared.end()
        self._end_versions()

    def _end_versions(self) -> None:
        """A client that is told of a version that it is committed is told that of another one's
        commit as well. If only the other one can be seen, that is how it was.
        """
        attempts: dict[tuple[str, int], list[Transaction]] = defaultdict(list)
        for one in self.single:
            if one.version != NO_VERSION and not one.is_aborted:
                attempts[one.owner.id, one.version].append(one)
        for ones in attempts.values():
            seen = [one for one in ones if any(self.is_visible(*value) for value in one.values())]
            if len(ones) > 1 and seen:
                for one in ones:
                    if one.is_committed and one.sent and one not in seen:
                        one.told = Told.BEFORE

    def reader_of(self, read: Read) -> int | None:
        """The number of the transaction that polled it."""
        return self._reader.get(read.invoked)

    # -- what is known of it ---------------------------------------------------------------

    @property
    def all(self) -> Iterator[Transaction]:
        return iter(self.by_number.values())

    @property
    def single(self) -> Iterator[Transaction]:
        """Those of one producer each."""
        return (one for one in self.all if not one.is_member)

    @cached_property
    def marks(self) -> dict[str, dict[int, Mark]]:
        """By key and offset, of records in transactions. Keys without logs are left out."""
        return {name: marks_of(key) for name, key in self._keys.items() if key.replicas}

    def mark_of(self, key: str, value: Value) -> Mark | None:
        """None: no log has it, or there are no logs."""
        place = self._keys[key].order.first(value)
        return None if place is None else self.marks.get(key, {}).get(place)

    def _is_final(self, read: Read, key: str) -> bool:
        session = read.session
        is_whole = session.is_committed and key in session.from_beginning
        return is_whole and read.invoked > self.final

    @cached_property
    def seen(self) -> dict[str, set[Value]]:
        """By key, all values that readers at the committed level got."""
        seen: dict[str, set[Value]] = {}
        for name, key in self._keys.items():
            reads = (read.values for read in key.reads if read.session.is_committed)
            seen[name] = set().union(*reads)
        return seen

    @cached_property
    def seen_finally(self) -> dict[str, set[Value]]:
        seen: dict[str, set[Value]] = {}
        for name in self.final_keys:
            reads = self._keys[name].reads if name in self._keys else ()
            seen[name] = set().union(*(r.values for r in reads if self._is_final(r, name)))
        return seen

    def is_visible(self, key: str, value: Value) -> bool | None:
        """In the end, to readers at the committed level; None: nobody has looked."""
        if key in self.seen_finally:
            return value in self.seen_finally[key]
        if key in self.marks:
            return self.mark_of(key, value) is Mark.COMMIT
        return None

    def has_happened(self, one: Transaction) -> bool:
        """It was committed: by its answer, or by what can be seen of it."""
        if one.is_aborted:
            return False
        return one.is_committed or any(self.is_visible(*value) for value in one.values())

    @cached_property
    def happened(self) -> list[Transaction]:
        return [one for one in self.all if self.has_happened(one)]
