"""Takes a history in which nothing is wrong, and makes one thing wrong.

Owns one planter for each kind of finding: a function that changes a copy of the events at a place
that a seed chooses, or says that there is no such place. What it plants may show as other kinds
as well; never as nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jepsen_like.history.event import Event, Type, decode_lines, encode_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

NOBODYS = 999_999_999  # a value that nobody sent


class Tampered:
    """A copy of a history in which anything can be changed."""

    def __init__(self, events: list[Event], random: Random) -> None:
        lines = [encode_line(event) for event in events]
        self.events = list(decode_lines(lines, name="planted"))
        self.random = random

    def of(self, f: str, kind: Type = Type.OK) -> list[Event]:
        return [event for event in self.events if event.f == f and event.type is kind]

    @property
    def final(self) -> int:
        """The event in which the last reads begin; they read everything."""
        return next(e.index for e in self.events if e.f == "phase" and e.value == "final")

    def pick(self, places: list[Any]) -> Any:
        """Any of them; an IndexError if there is none."""
        return self.random.choice(places)

    def change(self, event: Event, **changes: Any) -> None:
        self.events[event.index] = replace(event, **changes)

    def sends(self) -> list[Event]:
        """Done once, by all replicas, for certain."""
        return [
            event
            for event in self.of("send")
            if event.value["acks"] == -1
            and not event.value.get("is_repeated")
            and None not in event.value["offsets"]
            and event.value["offsets"][0] >= self.log_start(event.value["key"])
        ]

    def log_start(self, key: str) -> int:
        replicas = [e.value for e in self.of("replica") if e.value["key"] == key]
        return max((replica["log_start"] for replica in replicas), default=0)

    def reads(self, *, of: str | None = None, count: int = 1) -> list[tuple[Event, list[Any]]]:
        """Polls, with the records of one key in them, that have at least so many."""
        return [
            (event, records)
            for event in self.of("poll")
            for key, records in event.value["records"]
            if len(records) >= count and of in (None, key) and records[0][0] >= self.log_start(key)
        ]

    def batches(self) -> list[list[Any]]:
        return [batch for event in self.of("replica") for batch in event.value["batches"]]

    def key_of(self, read: tuple[Event, list[Any]]) -> str:
        key: str = next(key for key, records in read[0].value["records"] if records is read[1])
        return key

    def rename(self, names: dict[int, int], *, in_sends: bool = False) -> None:
        """Other values wherever they stand; NOBODYS: nothing stands there."""
        for event in [*self.of("poll"), *self.of("poll", Type.INFO)]:
            for _, records in event.value["records"]:
                for record in records:
                    record[1] = names.get(record[1], record[1])
                records[:] = [record for record in records if record[1] != NOBODYS]
        for batch in self.batches():
            renamed = [names.get(value, value) for value in batch[3]]
            batch[3][:] = [None if value == NOBODYS else value for value in renamed]
        for event in self.of("send") if in_sends else []:
            _rename_offsets(event.value, names)

    def without_replicas(self) -> None:
        kept = [event for event in self.events if event.f != "replica"]
        self.events = [replace(event, index=index) for index, event in enumerate(kept)]


def _rename_offsets(value: dict[str, Any], names: dict[int, int]) -> None:
    """Each value is acknowledged where the one stood whose place it took."""
    back = {new: old for old, new in names.items()}
    places = dict(zip(value["values"], value["offsets"], strict=True))
    value["offsets"] = [places.get(back.get(v, v), places[v]) for v in value["values"]]


def inconsistent_offsets(history: Tampered) -> None:
    """A reader sees another value than the others do."""
    read = history.pick(history.reads())
    record, key = history.pick(read[1]), history.key_of(read)
    asked = [e.value for e in history.of("send", Type.INVOKE) if e.value["key"] == key]
    sent = [value for send in asked for value in send["values"]]
    record[1] = history.pick([value for value in sent if value != record[1]])


def lost_write(history: Tampered) -> None:
    """Acknowledged, and then in no read and no replica."""
    value = history.pick([v for event in history.sends() for v in event.value["values"]])
    history.rename({value: NOBODYS})


def lost_write_between(history: Tampered) -> None:
    """The same, with no replica that anybody looked at: readers saw what is behind it."""
    ends: dict[str, int] = {}
    for event, records in history.reads():
        key = history.key_of((event, records))
        ends[key] = max(ends.get(key, 0), records[-1][0])
    places = [
        value
        for event in history.sends()
        for value, at in zip(event.value["values"], event.value["offsets"], strict=True)
        if at < ends.get(event.value["key"], 0)
    ]
    history.rename({history.pick(places): NOBODYS})
    if not any(history.log_start(event.value["key"]) for event in history.of("replica")):
        history.without_replicas()


def lost_on_node(history: Tampered) -> None:
    """One replica has nothing where others have what was acknowledged, and counts it as there."""
    send = history.pick(history.sends())
    place = history.random.randrange(len(send.value["values"]))
    value, offset = send.value["values"][place], send.value["offsets"][place]
    holders = [
        event
        for event in history.of("replica")
        if event.value["key"] == send.value["key"] and event.value["high_watermark"] > offset
        if any(value in batch[3] for batch in event.value["batches"])
    ]
    node = history.pick(holders if len(holders) > 1 else [])
    for batch in node.value["batches"]:
        batch[3][:] = [None if kept == value else kept for kept in batch[3]]


def duplicate(history: Tampered) -> None:
    """What was sent once stands where something else stood, as well."""
    send = history.pick(history.sends())
    value = history.pick(send.value["values"])
    others = [
        record[1]
        for _, records in history.reads(of=send.value["key"])
        for record in records
        if record[1] != value
    ]
    history.rename({history.pick(others): value})


def aborted_read(history: Tampered) -> None:
    """Its sender was told that it certainly did not happen."""
    places = [
        event
        for event in history.sends()
        if any(v in batch[3] for batch in history.batches() for v in event.value["values"])
    ]
    event = history.pick(places)
    history.change(event, type=Type.FAIL, value=None, error="NotLeader")


def unexpected_read(history: Tampered) -> None:
    """A reader, or a replica, has what nobody sent."""
    _, records = history.pick(history.reads())
    places: list[Callable[[], None]] = [
        lambda: history.pick(records).__setitem__(1, NOBODYS),
        lambda: history.pick(history.batches())[3].__setitem__(0, NOBODYS),
    ]
    history.pick(places)()


def unseen(history: Tampered) -> None:
    """The last reads do not have what was acknowledged."""
    final = history.final
    value = history.pick([v for event in history.sends() for v in event.value["values"]])
    for event in history.of("poll"):
        for _, records in event.value["records"] if event.index > final else ():
            records[:] = [record for record in records if record[1] != value]


def _successive(history: Tampered, before: int | None = None) -> list[tuple[list[Any], list[Any]]]:
    """Records of one key in two polls of one process, with nothing but polls between them."""
    last: dict[tuple[Any, str], list[Any]] = {}
    found = []
    for event in history.events[:before]:
        if event.f != "poll" or event.type is Type.INFO:
            last = {at: r for at, r in last.items() if at[0] != event.process}
        if event.f == "poll" and event.type is Type.OK:
            for key, records in event.value["records"]:
                if records and (event.process, key) in last:
                    found.append((last[event.process, key], records))
                if records and records[0][0] >= history.log_start(key):
                    last[event.process, key] = records
    return found


def poll_skip(history: Tampered) -> None:
    """A poll begins too far ahead."""
    final = history.final
    pairs = [pair for pair in _successive(history, before=final) if len(pair[1]) > 1]
    history.pick(pairs)[1].pop(0)


def poll_skip_at_the_beginning(history: Tampered) -> None:
    """Who reads from the beginning misses the first record."""
    final = history.final
    first: dict[tuple[Any, str], list[Any]] = {}
    for event, records in history.reads(count=2):
        if event.index > final:
            first.setdefault((event.process, history.key_of((event, records))), records)
    history.pick(list(first.values())).pop(0)


def int_poll_skip(history: Tampered) -> None:
    """A poll leaves a record out that another poll has."""
    final = history.final
    before = [records for event, records in history.reads(count=3) if event.index < final]
    history.pick(before).pop(1)


def nonmonotonic_poll(history: Tampered) -> None:
    """A poll brings again what the one before brought last."""
    before, records = history.pick(_successive(history))
    records.insert(0, list(before[-1]))


def int_nonmonotonic_poll(history: Tampered) -> None:
    """A poll brings two records in the wrong order, or one twice."""
    _, records = history.pick(history.reads(count=2))
    if history.random.random() < 0.5:
        records[0], records[1] = records[1], records[0]
    else:
        records.insert(1, list(records[0]))


def nonmonotonic_send(history: Tampered) -> None:
    """Two values stand in the other order than their process sent them."""
    last: dict[tuple[Any, str], Event] = {}
    pairs = []
    for event in history.sends():
        before = last.get((event.process, event.value["key"]))
        if before is not None:
            pairs.append((before, event))
        last[event.process, event.value["key"]] = event
    before, event = history.pick(pairs)
    one, other = before.value["values"][-1], event.value["values"][0]
    _swap(history, one, other, before, event)


def int_nonmonotonic_send(history: Tampered) -> None:
    """The same of two values of one send."""
    event = history.pick([event for event in history.sends() if len(event.value["values"]) > 1])
    one, other = history.pick(list(pairwise(event.value["values"])))
    _swap(history, one, other, event, event)


def _swap(history: Tampered, one: int, other: int, before: Event, event: Event) -> None:
    history.rename({one: other, other: one})
    here, there = before.value["values"].index(one), event.value["values"].index(other)
    left, right = before.value["offsets"], event.value["offsets"]
    left[here], right[there] = right[there], left[here]


def replica_divergence(history: Tampered) -> None:
    """A batch differs, in what it holds or in what is around it."""
    places = [
        (event, batch)
        for event in history.of("replica")
        for batch in event.value["batches"]
        if history.log_start(event.value["key"]) <= batch[0]
        and batch[0] + len(batch[3]) < event.value["high_watermark"]
    ]
    event, batch = history.pick(places)
    field = history.random.randrange(1, 4)
    if field == 3:
        event.value["batches"].remove(batch)
    else:
        batch[field] += 1


def read_beyond_the_end(history: Tampered) -> None:
    """A reader saw what no replica has."""
    _, records = history.pick(history.reads())
    records.append([100_000, records[-1][1]])


def high_watermark_back(history: Tampered) -> None:
    """A reader is told less than before, by the same consumer."""
    last: dict[tuple[Any, str], int] = {}
    places = []
    for event in history.events:
        if event.f == "assign" or (event.f, event.type) == ("poll", Type.INFO):
            last = {known: told for known, told in last.items() if known[0] != event.process}
        if (event.f, event.type) != ("poll", Type.OK):
            continue
        for pair in event.value["high_watermarks"]:
            if last.get((event.process, pair[0]), 0) > 0:
                places.append((pair, last[event.process, pair[0]]))
            last[event.process, pair[0]] = pair[1]
    pair, before = history.pick(places)
    pair[1] = history.random.randrange(before)


def leader_went_back(history: Tampered) -> None:
    """A leader says less than another of its epoch, or of one before, has said."""
    said = history.of("watermark")
    pairs = [
        (one, other)
        for one in said
        for other in said
        if one.value["key"] == other.value["key"]
        and one.value["epoch"] <= other.value["epoch"]
        and one.value["high_watermark"] > 0
        and one.index < _invoked(history, other)
    ]
    one, other = history.pick(pairs)
    other.value["high_watermark"] = history.random.randrange(one.value["high_watermark"])


def _invoked(history: Tampered, ended: Event) -> int:
    before = history.events[: ended.index]
    return max(e.index for e in before if e.process == ended.process and e.type is Type.INVOKE)


def two_leaders(history: Tampered) -> None:
    """Another node leads in the same epoch."""
    event = history.pick(history.of("leads", Type.INFO))
    assert event.node is not None
    again = replace(event, index=len(history.events), node=event.node % 3 + 1)
    history.events.append(again)


def not_linearizable(history: Tampered) -> None:
    """A read finds what was never there."""
    event = history.pick(history.of("read"))
    event.value["value"] = NOBODYS


def _stale(history: Tampered) -> list[Event]:
    """Reads that began when something had been written."""
    writes = [event.index for event in history.of("write")]
    return [e for e in history.of("read") if writes and writes[0] < _invoked(history, e)]


def stale_read(history: Tampered) -> None:
    """A read finds the register as it was at first, though something was written since."""
    history.pick(_stale(history)).value["value"] = None


PLANTS: dict[str, tuple[str, Callable[[Tampered], None]]] = {
    "inconsistent offsets": ("inconsistent-offsets", inconsistent_offsets),
    "a lost write": ("lost-write", lost_write),
    "a lost write between reads": ("lost-write", lost_write_between),
    "lost on a node": ("lost-on-node", lost_on_node),
    "a duplicate": ("duplicate", duplicate),
    "an aborted read": ("aborted-read", aborted_read),
    "an unexpected read": ("unexpected-read", unexpected_read),
    "unseen": ("unseen", unseen),
    "a skip between polls": ("poll-skip", poll_skip),
    "a skip at the beginning": ("poll-skip", poll_skip_at_the_beginning),
    "a skip within a poll": ("int-poll-skip", int_poll_skip),
    "a poll that goes back": ("nonmonotonic-poll", nonmonotonic_poll),
    "disorder within a poll": ("int-nonmonotonic-poll", int_nonmonotonic_poll),
    "sends in the wrong order": ("nonmonotonic-send", nonmonotonic_send),
    "disorder within a send": ("int-nonmonotonic-send", int_nonmonotonic_send),
    "replicas that differ": ("replica-divergence", replica_divergence),
    "a read beyond all logs": ("replica-divergence", read_beyond_the_end),
    "a high watermark that goes back": ("high-watermark-back", high_watermark_back),
    "a leader that goes back": ("high-watermark-back", leader_went_back),
    "two leaders": ("two-leaders", two_leaders),
    "a value out of nowhere": ("not-linearizable", not_linearizable),
    "a stale read": ("not-linearizable", stale_read),
}


def planted(
    events: list[Event], random: Random, plant: Callable[[Tampered], None]
) -> list[Event] | None:
    """None: the history has no place for it."""
    history = Tampered(events, random)
    try:
        plant(history)
    except IndexError:
        return None
    return history.events
