"""Takes a history of scheduled records in which nothing is wrong, and makes one thing wrong.

Owns the planters of what only scheduled records can bring: what they plant may show as other kinds
as well. An IndexError says that there is no place for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.history.event import Event
    from tests.jepsen_like.checkers.plants import Tampered


class _Sent(NamedTuple):
    value: int
    offset: int
    due: float
    completed: float


def _sent(history: Tampered) -> list[_Sent]:
    """What was acknowledged, and nobody asked to cancel."""
    asked = {event.value["value"] for event in history.of("cancel", Type.INVOKE)}
    return [
        _Sent(value, offset, event.value["due"], event.time)
        for event in history.of("send")
        for value, offset in zip(event.value["values"], event.value["offsets"], strict=True)
        if value not in asked
    ]


def _reads(history: Tampered) -> list[tuple[Event, list[Any], list[Any]]]:
    """Each poll, with its records and what these say of their delivery."""
    return [
        (event, event.value["records"][0][1], event.value["delivered"][0][1])
        for event in history.of("poll")
    ]


def _read_values(history: Tampered) -> set[int]:
    return {value for _, records, _ in _reads(history) for _, value in records}


def _drop(history: Tampered, value: int, *, hidden: bool) -> None:
    """From all reads and deliveries; with `hidden`: as it was scheduled, too."""
    for _, records, delivered in _reads(history):
        gone = {offset for offset, read in records if read == value}
        records[:] = [record for record in records if record[0] not in gone]
        delivered[:] = [row for row in delivered if row[0] not in gone]
    for event in history.of("replica"):
        batches = [batch[3] for batch in event.value["batches"]]
        rows = [row[1] for row in event.value["scheduled"]] if hidden else []
        for values in (*batches, *rows):
            values[:] = [None if kept == value else kept for kept in values]


def _clocks_touched(history: Tampered) -> bool:
    return bool(history.of("clock", Type.INVOKE))


def undelivered(history: Tampered) -> None:
    """It was due, and nobody got it."""
    read = _read_values(history)
    one = history.pick([one for one in _sent(history) if one.value in read])
    _drop(history, one.value, hidden=False)


def delivered_then_lost(history: Tampered) -> None:
    """The last reader does not get it."""
    event, records, _ = _reads(history)[-1]
    due = {one.value for one in _sent(history) if one.due < event.time - 2.5}
    records.remove(history.pick([record for record in records if record[1] in due]))


def lost(history: Tampered) -> None:
    """It is not due yet, and in no log."""
    read = _read_values(history)
    one = history.pick([one for one in _sent(history) if one.value not in read])
    _drop(history, one.value, hidden=True)


def delivered_twice(history: Tampered) -> None:
    """The next leader delivers it once more."""
    event, records, delivered = _reads(history)[-1]
    offset, value = history.pick(records)
    end = max(replica.value["high_watermark"] for replica in history.of("replica"))
    records.append([end, value])
    due, at = next((due, at) for where, due, at in delivered if where == offset)
    delivered.append([end, due, at])
    assert event.type is Type.OK, "it was read"


def hidden_was_read(history: Tampered) -> None:
    """A reader gets it where it was scheduled, as well."""
    _, records, _ = _reads(history)[-1]
    read = {value for _, value in records}
    one = history.pick([one for one in _sent(history) if one.value in read])
    records.insert(0, [one.offset, one.value])


def cancelled_delivery(history: Tampered) -> None:
    """A cancel that was refused was answered to be done."""
    refused = [event for event in history.of("cancel", Type.FAIL) if event.value["why"]]
    delivered = [event for event in refused if event.value["why"] == "delivered"]
    history.change(history.pick(delivered), type=Type.OK, value=None)


def early_by_all_clocks(history: Tampered) -> None:
    """Its due time was a minute later, and no clock was wrong."""
    if _clocks_touched(history):
        raise IndexError
    read = _read_values(history)
    sends = [event for event in history.of("send") if read.issuperset(event.value["values"])]
    event = history.pick(sends)
    values = event.value["values"]
    for sent in (*history.of("send"), *history.of("send", Type.INVOKE)):
        if sent.value["values"] == values:
            sent.value["due"] += 60.0


def early_by_its_leader(history: Tampered) -> None:
    """The record itself says so."""
    _, _, delivered = _reads(history)[-1]
    offset = history.pick(delivered)[0]
    for _, _, rows in _reads(history):
        for row in rows:
            if row[0] == offset:
                row[2] = row[1] - 0.001


def due_order(history: Tampered) -> None:
    """Two change places, in all that anybody saw."""
    if _clocks_touched(history):
        raise IndexError
    sent = {one.value: one for one in _sent(history)}
    epochs = {
        offset: batch[1]
        for batch in history.of("replica")[0].value["batches"]
        for offset in range(batch[0], batch[0] + len(batch[3]))
    }
    _, records, delivered = _reads(history)[-1]
    stamps = {offset: (due, at) for offset, due, at in delivered}
    pairs = [
        (one, other)
        for one, other in pairwise(records)
        if one[1] in sent and other[1] in sent
        if epochs[one[0]] == epochs[other[0]]
        if sent[one[1]].due < sent[other[1]].due
        if sent[one[1]].completed < sent[other[1]].due - 1
    ]
    (here, one), (there, other) = history.pick(pairs)
    history.rename({one: other, other: one})
    for _, records, rows in _reads(history):
        of = dict(records)
        for row in rows:
            if row[0] in (here, there) and row[0] in of:
                row[1] = stamps[there if row[0] == here else here][0]
                row[2] = max(row[1], stamps[there][1])


def lost_from_memory(history: Tampered) -> None:
    """It is not due yet, and stands in all logs, but its leader does not know it any more."""
    read = _read_values(history)
    one = history.pick([one for one in _sent(history) if one.value not in read])
    history.of("pending")[0].value["keys"][0][1].remove(one.offset)


def delivered_and_pending(history: Tampered) -> None:
    """It was delivered, and its leader will do so once more."""
    read = _read_values(history)
    one = history.pick([one for one in _sent(history) if one.value in read])
    history.of("pending")[0].value["keys"][0][1].append(one.offset)


SCHEDULE_PLANTS: dict[str, tuple[str, Callable[[Tampered], None]]] = {
    "due and not delivered": ("undelivered", undelivered),
    "delivered and then lost": ("undelivered", delivered_then_lost),
    "not due and lost": ("lost-scheduled", lost),
    "not due and unknown to its leader": ("lost-scheduled", lost_from_memory),
    "delivered and still pending": ("delivered-twice", delivered_and_pending),
    "delivered twice": ("delivered-twice", delivered_twice),
    "read where it was scheduled": ("delivered-twice", hidden_was_read),
    "cancelled and delivered": ("cancelled-delivery", cancelled_delivery),
    "early by all clocks": ("early-delivery", early_by_all_clocks),
    "early by its leader's clock": ("early-delivery", early_by_its_leader),
    "delivered in the wrong order": ("due-order", due_order),
}
