"""Takes a history of transactions in which nothing is wrong, and makes one thing wrong.

Owns one planter for each kind of finding that only transactions can bring; what it plants may show
as other kinds as well. An IndexError says that there is no place for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.history.event import WATCH, Event, Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.jepsen_like.checkers.plants import Tampered


class Told(NamedTuple):
    """A transaction: its events, and what its client was told."""

    number: int
    begin: Event
    sends: list[Event]
    end: Event | None
    answer: Event | None

    @property
    def is_committed(self) -> bool:
        return self.answer is not None and (self.answer.value or {}).get("outcome") == "committed"

    @property
    def values(self) -> list[tuple[str, int, int]]:
        """Key, offset and value of each that is there."""
        return [
            (send.value["key"], offset, value)
            for send in self.sends
            for offset, value in zip(send.value["offsets"], send.value["values"], strict=True)
        ]


def _all(history: Tampered) -> list[Told]:
    ends = {e.value["tx"]: e for e in history.of("end", Type.INVOKE)}
    return [_told(history, begin, ends.get(begin.value["tx"])) for begin in history.of("begin")]


def _told(history: Tampered, begin: Event, end: Event | None) -> Told:
    number = begin.value["tx"]
    sends = [e for e in history.of("send") if e.value.get("tx") == number]
    answer = None
    if end is not None:
        later = history.events[end.index + 1 :]
        answers = (e for e in later if e.process == end.process and e.f in ("end", "crash"))
        answer = next(answers, None)
    return Told(number, begin, sends, end, answer)


def _committed(history: Tampered) -> list[Told]:
    return [one for one in _all(history) if one.is_committed]


def _of_copying(history: Tampered) -> list[tuple[Told, Event, Event]]:
    """Committed, with sends of results: how each was asked for, and its answer."""
    return [
        (one, history.events[send.index - 1], send)
        for one in _committed(history)
        for send in one.sends
        if send.value.get("of")
    ]


def _levels(history: Tampered, level: str) -> set[object]:
    return {e.process for e in history.of("assign") if e.value["level"] == level}


def _polls(history: Tampered, level: str, *, is_final: bool) -> list[Event]:
    processes = _levels(history, level)
    return [
        event
        for event in history.of("poll")
        if event.process in processes and (event.index > history.final) is is_final
    ]


def _records(poll: Event, key: str) -> list[list[int]]:
    return next((records for of, records in poll.value["records"] if of == key), [])


def _drop(poll: Event, key: str, value: int) -> None:
    records = _records(poll, key)
    records[:] = [record for record in records if record[1] != value]
    poll.value["records"] = [pair for pair in poll.value["records"] if pair[1]]


def _put(poll: Event, key: str, offset: int, value: int) -> None:
    records = _records(poll, key)
    if not records:
        poll.value["records"].append([key, records])
    records.append([offset, value])
    records.sort()


def _final(history: Tampered) -> Event:
    return _polls(history, "committed", is_final=True)[0]


# -- what is read ------------------------------------------------------------------------------


def aborted_read(history: Tampered) -> None:
    """The last reader gets a record of one of which nobody has asked for the commit."""
    no_commit = [one for one in _all(history) if one.end is None or not one.end.value["commit"]]
    places = [value for one in no_commit for value in one.values]
    _put(_final(history), *history.pick(places))


def early_read(history: Tampered) -> None:
    """A reader gets a record before anybody has asked for the commit."""
    polls = _polls(history, "committed", is_final=False)
    places = [
        (poll, value)
        for one in _committed(history)
        for value in one.values
        for poll in polls
        if one.end is not None and one.sends[0].index < poll.index < one.end.index
    ]
    poll, value = history.pick(places)
    _put(poll, *value)


def read_of_the_future(history: Tampered) -> None:
    """A transaction reads what one that begins after its end has written."""
    ones = _committed(history)
    polls = [e for e in history.of("poll") if "session" in e.value]
    asked = {e.index: history.events[e.index - 1].value["tx"] for e in polls}
    places = [
        (poll, value)
        for reader in ones
        for poll in polls
        if asked[poll.index] == reader.number
        for writer in ones
        if reader.answer is not None and writer.begin.index > reader.answer.index
        for value in writer.values
    ]
    poll, value = history.pick(places)
    _put(poll, *value)


def left_out(history: Tampered) -> None:
    """A reader steps over a record of a committed one."""
    _leave_out(history, "committed", [v for one in _committed(history) for v in one.values])


def left_out_uncommitted(history: Tampered) -> None:
    """A reader of everything steps over a record of an aborted one."""
    others = [v for one in _all(history) if not one.is_committed for v in one.values]
    _leave_out(history, "uncommitted", others)


def _leave_out(history: Tampered, level: str, values: list[tuple[str, int, int]]) -> None:
    polls = _polls(history, level, is_final=False)
    places = [
        (poll, key, value)
        for key, offset, value in values
        for poll in polls
        if [offset, value] in _records(poll, key)[:-1]
    ]
    poll, key, value = history.pick(places)
    _drop(poll, key, value)


def out_of_order(history: Tampered) -> None:
    """The second value of a send had been handed in first."""
    sends = [s for one in _committed(history) for s in one.sends if len(s.value["values"]) > 1]
    send = history.pick(sends)
    for event in (history.events[send.index - 1], send):
        for name in ("values", "offsets"):
            event.value.get(name, []).reverse()


# -- what has happened -------------------------------------------------------------------------


def torn(history: Tampered) -> None:
    """One of the records of a committed one is not there."""
    ones = [one for one in _committed(history) if len(one.values) > 1]
    key, _, value = history.pick(history.pick(ones).values)
    _drop(_final(history), key, value)


def torn_by_markers(history: Tampered) -> None:
    """In one of its partitions the marker says the contrary; readers see what it says."""
    ones = [one for one in _committed(history) if len({v[0] for v in one.values}) > 1]
    one = history.pick(ones)
    key = one.values[0][0]
    for event in history.of("replica"):
        if event.value["key"] == key:
            _turn(event.value, one.values[0][1])
    for of, _, value in one.values:
        if of == key:
            _drop(_final(history), key, value)


def _turn(dump: dict[str, Any], offset: int) -> None:
    """The marker that ends the record at this offset."""
    pid = next(pid for at, pid, _ in dump["transactional"] if at == offset)
    marker = next(mark for mark in dump["markers"] if mark[0] > offset and mark[1] == pid)
    marker[3] = not marker[3]


def lost(history: Tampered) -> None:
    """Nothing of a committed one is there."""
    one = history.pick([one for one in _committed(history) if one.values])
    for key, _, value in one.values:
        _drop(_final(history), key, value)


def lost_offset(history: Tampered) -> None:
    """A group stands before the last committed end."""
    (event,) = history.of("group-offsets")
    ends = [
        tuple(told) for one in _committed(history) if one.end for told in one.end.value["offsets"]
    ]
    places = [told for told in event.value["offsets"] if tuple(told) in ends]
    history.pick(places)[2] -= 1


def input_without_result(history: Tampered) -> None:
    """A committed copy left one of its inputs out, where others have results."""
    copies = [asked for _, asked, _ in _of_copying(history) if len(asked.value["of"]) > 1]
    asked = history.pick(copies)
    asked.value["of"][history.random.randrange(len(asked.value["of"]))] = None


def two_results(history: Tampered) -> None:
    """What two committed ones have sent are results of one input."""
    copies = _of_copying(history)
    (one, asked, _), (other, again, _) = copies[0], history.pick(copies[1:])
    if one.number == other.number:
        raise IndexError
    again.value["of"][0] = asked.value["of"][0]


def version_twice(history: Tampered) -> None:
    """Two committed ones had the same version."""
    ones = [one for one in _committed(history) if one.begin.value["version"] is not None]
    first, second = ones[0], history.pick([one for one in ones if one.values][1:])
    if first is second or not first.values:
        raise IndexError
    second.begin.value["version"] = first.begin.value["version"]


def done_by_nobody(history: Tampered) -> None:
    """A client is told that a version is done which nobody has tried before."""
    begins = [e for e in history.of("begin") if e.value["version"] is not None]
    begin = history.pick(begins)
    for event in (history.events[begin.index - 1], begin):
        event.value.update(version=1_000, is_done=True)
    for event in history.of("end", Type.INVOKE):
        if event.value["tx"] == begin.value["tx"]:
            event.value["commit"] = False


def zombie_end(history: Tampered) -> None:
    """The commit of a replaced owner is carried out. With a version it could be told of another
    one's commit.
    """
    refused = [
        one
        for one in _all(history)
        if one.end is not None
        and one.begin.value["version"] is None
        and one.end.value["commit"]
        and one.values
        and one.answer is not None
        and one.answer.type is Type.FAIL
    ]
    _carry_out(history, history.pick(refused))


def zombie_write(history: Tampered) -> None:
    """What a replaced owner sends, and was refused, becomes part of what is committed."""
    late = {e.value["tx"] for e in _refused_sends(history)}
    ones = [one for one in _all(history) if one.number in late and one.end and one.answer]
    ones = [one for one in ones if one.begin.value["version"] is None]
    one = history.pick([one for one in ones if one.answer and one.answer.f == "end"])
    assert one.end is not None
    one.end.value["commit"] = True
    _carry_out(history, one)


def _refused_sends(history: Tampered) -> list[Event]:
    failed = history.of("send", Type.INFO)
    asked = [history.events[e.index - 1] for e in failed]
    return [e for e in asked if "tx" in e.value]


def _carry_out(history: Tampered, one: Told) -> None:
    assert one.answer is not None
    history.change(one.answer, type=Type.OK, value={"outcome": "committed"})


def stuck(history: Tampered) -> None:
    """When nobody is left, something is open."""
    (event,) = [e for e in history.of("stable") if e.process == WATCH]
    history.pick([told for told in event.value["ends"] if told[1]])[1] -= 1


def unsettled(history: Tampered) -> None:
    """A commit is remembered for ever."""
    (event,) = history.of("stable")
    event.value["unsettled"] = ["a"]


# By the name of the finding.
TRANSACTION_PLANTS: list[tuple[str, Callable[[Tampered], None]]] = [
    ("aborted-transaction-read", aborted_read),
    ("precommitted-read", early_read),
    ("circular-reads", read_of_the_future),
    ("transaction-skip", left_out),
    ("transaction-skip", left_out_uncommitted),
    ("transaction-order", out_of_order),
    ("torn-transaction", torn),
    ("torn-transaction", torn_by_markers),
    ("torn-transaction", input_without_result),
    ("lost-transaction", lost),
    ("lost-transaction-offset", lost_offset),
    ("duplicate-effect", two_results),
    ("version-twice", version_twice),
    ("version-twice", done_by_nobody),
    ("zombie-end", zombie_end),
    ("zombie-write", zombie_write),
    ("stuck-transaction", stuck),
    ("stuck-transaction", unsettled),
]
