"""A history sorted by key in one pass: sends, reads, replicas, phases; the input of all checkers.

Owns the pairing of invocations with completions, and the outcome of each value: an operation that
never completed is unknown, and so is each value of one with outcome info, except those with an
offset and those that are reported as failed. Judges only the form: a malformed history has no
verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Any

from jepsen_like.checkers.columns import (
    NOT_SEEN,
    KeyAccount,
    PolledWatermark,
    Read,
    Replica,
    Send,
    Session,
    Watermark,
)
from jepsen_like.checkers.group_account import GroupAccount
from jepsen_like.checkers.looks import Looks
from jepsen_like.checkers.retry_account import RetryAccount
from jepsen_like.checkers.schedule_account import ScheduleAccount
from jepsen_like.checkers.transaction_account import OF_TRANSACTIONS, TransactionAccount
from jepsen_like.history.event import NAMED_SEND, NEMESIS, BadHistory, Event, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jepsen_like.checkers.group_columns import Taken
    from jepsen_like.history.event import Process

REGISTERS = frozenset({"read", "write", "cas"})
NEVER = math.inf


class Account:
    """Attributes:
    outcomes: of the operations of clients, by what they did and how it ended.
    faults: how often each began, without those that were skipped then.
    registers: operations on registers: the beginning and, if it came, the end.
    phases: the event in which each began.
    healed: by what they did, sends that ended well and polls that brought something, between the
        faults and the last reads.
    final_keys: those that a process began to read from the beginning in the phase "final".
    behind: the ends of keys that a final reader did not reach; of a register, NEVER.
    looks: what the watcher saw of the replicas.
    replica_count: how many nodes keep each key; 0: it was not recorded.
    groups: what consumer groups did.
    transactions: what producers with transactions did, and what became of it.
    schedule: what was to be delivered later.
    retries: what groups did that move what fails.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.keys: dict[str, KeyAccount] = {}
        self.outcomes: Counter[tuple[str, Type]] = Counter()
        self.faults: Counter[str] = Counter()
        self.registers: list[tuple[Event, Event | None]] = []
        self.phases: dict[str, int] = {}
        self.healed: Counter[str] = Counter()
        self.final_keys: set[str] = set()
        self.behind: dict[str, float] = {}
        self.looks = Looks()
        self.groups = GroupAccount(self._taken)
        self.transactions = TransactionAccount(self.keys)
        self.schedule = ScheduleAccount(self.keys, self.transactions.times)
        self.retries = RetryAccount(self.keys)
        self.replica_count = 0
        self.polled_count = 0
        self._open: dict[Process, Event] = {}
        self._sends: dict[Process, Send] = {}  # under way
        self._sessions: dict[Process, Session] = {}
        self._ended: dict[str, Callable[[Event, Event], None]] = {
            "send": self._sent,
            "poll": self._polled,
            "assign": self._assigned,
            "watermark": self._watermark,
            "behind": self._behind,
            "cancel": self.schedule.on_cancel,
            **dict.fromkeys(REGISTERS, self._register),
        }
        self._told: dict[str, Callable[[Event], None]] = {
            "replica": self._replica,
            "leads": self._leads,
            "phase": self._phase,
            "isr": self._isr,
            "keeps": self._keeps,
            "stable": self.transactions.on_stable,
            "group-offsets": self.transactions.on_group_offsets,
            "installed": self.transactions.on_installed,
            "pending": self._pending,
        }
        self._take_all(events)

    def _take_all(self, events: Iterable[Event]) -> None:
        for event in events:
            try:
                self._take(event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                what = f"event {event.index}: {event.type} of {event.f!r}"
                raise BadHistory(f"{what} is not of the form in event.py: {error!r}") from error
        for process in list(self._open):
            self._abandon(process)
        self.groups.end()
        for account in self.keys.values():
            account.is_kept = self.replica_count > 0
            _settle(account)
            if self.looks.is_whole:
                whole = {node: replica.in_sync() for node, replica in account.replicas.items()}
                account.replicas = whole
        self.transactions.end(self.phases, self.behind)
        self.schedule.end()

    def _take(self, event: Event) -> None:
        self.transactions.times.append(event.time)
        if isinstance(event.process, int):
            if event.type is Type.INVOKE:
                self._begin(event)
            elif event.f == "crash":
                self._crash(event)
            else:
                self._end(event)
        elif event.process == NEMESIS:
            self._fault(event)
        elif event.f == "watermark" and event.type is Type.OK:
            self._watermark(None, event)
        elif event.f in self._told:
            self._told[event.f](event)
        else:
            self.groups.take(event)
            self.retries.take(event)

    @property
    def is_healed(self) -> bool:
        """Now: nothing is broken any more, and the last reads have not begun."""
        return "heal" in self.phases and "final" not in self.phases

    # -- clients ---------------------------------------------------------------------------

    def _begin(self, event: Event) -> None:
        if event.process in self._open:
            raise BadHistory(f"event {event.index}: process {event.process} has not ended its last")
        self._open[event.process] = event
        if event.f == "send":
            asked = event.value
            send = Send(event.process, asked["acks"], asked["values"], event.index)
            send.is_idempotent = asked.get("is_idempotent", False)
            if "name" in asked:
                send.label = asked["name"], asked["generation"]
            if "tx" in asked:
                self.transactions.on_send(event, send)
            self._sends[event.process] = send
            send.due = asked.get("due")
            key = self._key(asked["key"])
            (key.sends if send.due is None else key.scheduled).append(send)
        elif event.f == "assign":
            self._sessions[event.process] = Session(event.process)
        elif event.f in OF_TRANSACTIONS:
            self.transactions.on_invoke(event)

    def _end(self, event: Event) -> None:
        began = self._open.pop(event.process, None)
        if began is None or began.f != event.f:
            raise BadHistory(
                f"event {event.index}: process {event.process} ends {event.f!r}, "
                "which it did not begin"
            )
        self.outcomes[_counted_as(began), event.type] += 1
        if event.f in self._ended:
            self._ended[event.f](began, event)
        elif event.f in OF_TRANSACTIONS:
            self.transactions.on_end(began, event)

    def _crash(self, event: Event) -> None:
        if event.process in self._open:
            self._abandon(event.process)
        self._sessions.pop(event.process, None)

    def _abandon(self, process: Process) -> None:
        """What was under way never ended."""
        began = self._open.pop(process)
        self._sends.pop(process, None)
        if began.f == "crash":
            return
        self.outcomes[_counted_as(began), Type.INFO] += 1
        if began.f in REGISTERS:
            self.registers.append((began, None))
        elif began.f == "cancel":
            self.schedule.on_cancel(began, None)

    def _sent(self, _: Event, event: Event) -> None:
        send = self._sends.pop(event.process)
        send.completed, send.outcome = event.index, event.type
        self.healed["send"] += self.is_healed and event.type is Type.OK
        if event.value is not None:
            send.offsets = event.value.get("offsets") or []
            send.is_repeated = event.value.get("is_repeated", False)
            send.failed = event.value.get("failed", ())
        if event.type is Type.FAIL:
            send.failed = send.values
        if send.offsets and len(send.offsets) != len(send.values):
            raise ValueError(f"{len(send.offsets)} offsets of {len(send.values)} values")

    def _polled(self, began: Event, event: Event) -> None:
        value = event.value or {}
        if began.value and "tx" in began.value:
            session = self.transactions.session(event.process, value.get("session"))
        else:
            session = self._session(event.process)
        self.transactions.on_poll(began, event)
        self.schedule.on_poll(event)
        for key, records in value.get("records", ()):
            if records:
                offsets, values = zip(*records, strict=True)
                read = Read(session, began.index, event.index, offsets, values)
                self._key(key).reads.append(read)
                self.polled_count += len(records)
                self.healed["poll"] += self.is_healed
        for key, high_watermark in value.get("high_watermarks", ()):
            polled = PolledWatermark(session, high_watermark, event.index)
            self._key(key).polled_watermarks.append(polled)
        if event.type is Type.INFO:  # it may have gone on without telling
            self._sessions[event.process] = Session(
                event.process, frozenset(), session.is_committed
            )

    def _taken(self, key: str, taken: Taken) -> None:
        """A read like others; from one to the next, groups have rules of their own."""
        read = Read(Session(taken.member), *taken[1:])
        self._key(key).reads.append(read)
        self.polled_count += len(taken.offsets)
        self.healed["poll"] += self.is_healed

    def _assigned(self, began: Event, event: Event) -> None:
        value = event.value or began.value
        if event.type is not Type.OK:
            return
        is_committed = value.get("level", "committed") == "committed"
        keys = frozenset(value["keys"]) if value["from"] == "beginning" else frozenset()
        self._sessions[event.process] = Session(event.process, keys, is_committed)
        if "final" in self.phases and keys:
            self.final_keys |= keys
            self.schedule.on_last_reader(event, keys)
            self.transactions.final_keys |= keys if is_committed else frozenset()

    def _session(self, process: Process) -> Session:
        if process not in self._sessions:
            self._sessions[process] = Session(process)
        return self._sessions[process]

    def _watermark(self, began: Event | None, event: Event) -> None:
        if event.type is Type.OK:
            value, invoked = event.value, NOT_SEEN if began is None else began.index
            said = Watermark(value["epoch"], value["high_watermark"], invoked, event.index)
            self._key(value["key"]).watermarks.append(said)

    def _register(self, began: Event, event: Event) -> None:
        self.registers.append((began, event))

    def _behind(self, _: Event, event: Event) -> None:
        for key, *where in event.value["keys"]:
            end = where[1] if where else NEVER
            self.behind[key] = max(end, self.behind.get(key, end))

    # -- the rest --------------------------------------------------------------------------

    def _fault(self, event: Event) -> None:
        self.schedule.on_fault(event)
        if event.type is Type.INVOKE:
            self.faults[event.f] += 1
            self.transactions.on_fault(event)
        elif event.f in self.faults and "skipped" in (event.value or {}):
            self.faults[event.f] -= 1
            self.transactions.on_skipped(event)

    def _replica(self, event: Event) -> None:
        value: dict[str, Any] = event.value
        node = _node(event)
        self._key(value["key"]).replicas[node] = Replica(
            node,
            event.index,
            value["log_start"],
            value["high_watermark"],
            value["batches"],
            value.get("damage", ()),
            value.get("transactional", ()),
            value.get("markers", ()),
            value.get("scheduled", ()),
        )

    def _leads(self, event: Event) -> None:
        key = self._key(event.value["key"])
        key.leads_said += 1
        nodes = key.leads.setdefault(event.value["epoch"], {})
        nodes.setdefault(_node(event), event.index)

    def _phase(self, event: Event) -> None:
        self.phases.setdefault(event.value, event.index)

    def _isr(self, event: Event) -> None:
        is_whole = None
        if event.type is Type.OK:
            is_whole = event.value["whole"] == event.value["partitions"]
        self.looks.take(event.index, is_whole=is_whole, is_after="heal" in self.phases)

    def _pending(self, event: Event) -> None:
        if event.type is Type.OK:
            self.schedule.on_pending(event)

    def _keeps(self, event: Event) -> None:
        self.replica_count = event.value["replicas"]

    def _key(self, key: str) -> KeyAccount:
        account = self.keys.get(key)
        if account is None:
            account = self.keys[key] = KeyAccount(key)
        return account


def _counted_as(began: Event) -> str:
    return NAMED_SEND if began.f == "send" and "name" in began.value else began.f


def _node(event: Event) -> int:
    if event.node is None:
        raise BadHistory(f"event {event.index}: {event.f!r} does not say of which node it tells")
    return event.node


def _settle(account: KeyAccount) -> None:
    """Who sent each value, and what was acknowledged: known once all have ended."""
    for send in account.sends:
        acknowledged = account.acknowledged if send.is_for_all else account.lightly
        if send.outcome is Type.OK or send.offsets:
            acknowledged.update(send.acknowledged())
        values = send.values
        if send.failed:
            failed = set(send.failed) - acknowledged.keys()
            values = [value for value in values if value not in failed]
        if not account.senders.keys().isdisjoint(values):
            account.sent_again.update(account.senders.keys() & set(values))
        account.senders.update(zip(values, repeat(send)))
