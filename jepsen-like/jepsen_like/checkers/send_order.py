"""Anomaly: values that one process sent one after the other are in the log in another order.

Counts values. The earlier value must be acknowledged by all, and its operation completed before the
later one was invoked; of the later one it is enough that its offset was seen. A value of unknown
outcome may be appended late, behind everything, so it is never the earlier one. Where there are
copies, the first ones are compared; where the first copy may be unknown, the value is not the
earlier one.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Send, Value
    from jepsen_like.history.event import Process


class _Sent(NamedTuple):
    offset: int
    value: Value
    send: Send


Placed: TypeAlias = "list[_Sent]"


def check(account: Account) -> list[Finding]:
    external, internal = Findings("nonmonotonic-send"), Findings("int-nonmonotonic-send")
    for key in account.keys.values():
        highest: dict[Process, _Sent] = {}
        for send in key.sends:
            if send.is_for_all and not _is_plainly_right(key, send, highest):
                placed = _placed(key, send)
                _check_external(key, placed, highest.get(send.process), external)
                _check_internal(key, placed, internal)
                _raise(highest, key, placed)
    return [external.finding(), internal.finding()]


def _is_plainly_right(key: KeyAccount, send: Send, highest: dict[Process, _Sent]) -> bool:
    """The common case, without a search: appended once, in order, behind the last one."""
    if send.outcome is not Type.OK or send.is_repeated or key.sent_again:
        return False
    places = [offset for offset in map(key.order.first, send.values) if offset is not None]
    before = highest.get(send.process)
    is_behind = places and (before is None or before.offset < places[0])
    is_rising = all(map(lt, places, places[1:]))
    if not is_behind or not is_rising or len(places) < len(send.values):
        return False
    highest[send.process] = _Sent(places[-1], send.values[-1], send)
    return True


def _placed(key: KeyAccount, send: Send) -> Placed:
    """The values with known offsets, in the order in which they were sent."""
    first = key.order.first
    places = ((first(value), value) for value in send.values)
    return [_Sent(offset, value, send) for offset, value in places if offset is not None]


def _check_external(key: KeyAccount, placed: Placed, before: _Sent | None, found: Findings) -> None:
    for sent in placed:
        if before is not None and sent.offset <= before.offset:
            found.add(partial(_sentence, key, before, sent))


def _check_internal(key: KeyAccount, placed: Placed, found: Findings) -> None:
    done = [sent for sent in placed if sent.value in key.acknowledged]
    for before, sent in pairwise(done):
        if sent.offset <= before.offset and _is_first(key, before):
            found.add(partial(_sentence, key, before, sent))


def _raise(highest: dict[Process, _Sent], key: KeyAccount, placed: Placed) -> None:
    """Of the process's values so far, the one with the highest offset."""
    for sent in placed:
        known = highest.get(sent.send.process)
        is_higher = known is None or known.offset < sent.offset
        if is_higher and sent.value in key.acknowledged and _is_first(key, sent):
            highest[sent.send.process] = sent


def _is_first(key: KeyAccount, sent: _Sent) -> bool:
    """No earlier copy can have been in the log unseen."""
    return key.stands_once(sent.value) or (bool(key.replicas) and key.log_start == 0)


def _sentence(key: KeyAccount, before: _Sent, sent: _Sent) -> str:
    return (
        f"key {key.key!r}: process {sent.send.process} sent {before.value!r} "
        f"(events {before.send.invoked} to {before.send.completed}) before {sent.value!r} "
        f"(events {sent.send.invoked} to {sent.send.completed}), but they stand at offsets "
        f"{before.offset} and {sent.offset}"
    )
