"""Anomalies of scheduled records: lost, undelivered, delivered twice, early, or though cancelled.

Counts values. A record may be early by as much as a broker's clock was ahead meanwhile, which is
what the harness did to clocks; never by the clock of the leader that delivered it. A record that
was due some seconds before the last readers began must be among what they got; one that is not due
yet must stand in the logs, and its leader must know that it is to be delivered. One of which it is
unknown whether it was cancelled may be missing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.schedule_account import CLOCK_BOUND_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import Value
    from jepsen_like.checkers.schedule_account import Scheduled

NAMES = ("lost-scheduled", "undelivered", "delivered-twice", "cancelled-delivery", "early-delivery")
GRACE_SECONDS = 2.0  # after a due time, in a cluster that is healed


def check(account: Account) -> list[Finding]:
    found = {name: Findings(name) for name in NAMES}
    seen, uncertain = _seen_at_last(account), 0
    for one in account.schedule.scheduled:
        for why in _reasons_of_early(account, one):
            found["early-delivery"].add(partial("{}: {}".format, one, why))
        _check_once(account, one, found)
        if not one.is_acknowledged or not one.send.is_for_all:
            continue
        if one.may_be_cancelled:
            uncertain += one.cancelled is None
        elif _is_over(account, one):
            if one.value not in seen.get(one.key.key, ()):
                found["undelivered"].add(partial(_undelivered_sentence, account, one))
        elif not one.is_delivered:
            _check_kept(account, one, found["lost-scheduled"])
    return [found[name].finding(**_figures(name, uncertain)) for name in NAMES]


def _figures(name: str, uncertain: int) -> dict[str, int]:
    return {"perhaps_cancelled": uncertain} if name == "undelivered" else {}


def _check_once(account: Account, one: Scheduled, found: dict[str, Findings]) -> None:
    """Or not at all, if it is cancelled; and that is it."""
    twice, cancelled = found["delivered-twice"], found["cancelled-delivery"]
    if one.value in one.key.order.copies and one.send.is_idempotent:
        twice.add(partial(_twice_sentence, one))
    if one.cancelled is not None and one.is_delivered:
        cancelled.add(partial(_cancelled_sentence, one))
    if _is_pending(account, one):
        if one.first is not None:
            twice.add(partial(_pending_sentence, one, "delivered"))
        elif one.cancelled is not None:
            cancelled.add(partial(_pending_sentence, one, "cancelled"))


def _check_kept(account: Account, one: Scheduled, found: Findings) -> None:
    """It is not due yet."""
    if nodes := _missing_on(account, one):
        found.add(partial(_lost_sentence, one, nodes))
    elif (
        _is_pending(account, one) is False and one.due > account.schedule.pending_at + GRACE_SECONDS
    ):
        found.add(partial("{}: its leader has it not among what is pending".format, one))


def _seen_at_last(account: Account) -> dict[str, set[Value]]:
    """By key, what the last readers got."""
    since = account.phases.get("final")
    if since is None:
        return {}
    return {
        key.key: {value for read in key.reads if read.invoked > since for value in read.values}
        for key in account.keys.values()
        if key.scheduled
    }


def _is_over(account: Account, one: Scheduled) -> bool:
    """The last readers must have got it."""
    last = account.schedule.last_reads.get(one.key.key)
    return last is not None and one.due + GRACE_SECONDS <= last


def _reasons_of_early(account: Account, one: Scheduled) -> Iterator[str]:
    if one.first is None:
        return
    of, (offset, event, time) = account.schedule, one.first
    if time < one.due - of.ahead(one.sent_at, time):
        yield f"read at offset {offset} in event {event}, at {time:.3f} s"
        return
    stamp = of.stamps.get(one.key.key, {}).get(offset)
    if stamp is None:
        return
    if stamp.at < stamp.due:
        when = f"at {stamp.at:.3f} s by its leader's clock, due at {stamp.due:.3f} s as it says"
        yield f"delivered at offset {offset} {when} (event {event})"
    elif stamp.due < one.due - CLOCK_BOUND_SECONDS:
        yield f"the record at offset {offset} says that it was due at {stamp.due:.3f} s"


def _is_pending(account: Account, one: Scheduled) -> bool | None:
    """As its leader said in the end; None: it was not asked."""
    pending = account.schedule.pending.get(one.key.key)
    return None if pending is None or one.offset is None else one.offset in pending


def _missing_on(account: Account, one: Scheduled) -> list[int]:
    """Nodes without it: all of them, or some that are in sync."""
    replicas = one.key.replicas
    missing = [n for n, replica in replicas.items() if one.value not in replica.hidden_values]
    return missing if account.looks.is_whole or len(missing) == len(replicas) else []


def _twice_sentence(one: Scheduled) -> str:
    order = one.key.order
    places = order.copies[one.value]
    return f"{one}: at offsets " + "; ".join(
        f"{at} ({order.witness(at, one.value)})" for at in places
    )


def _cancelled_sentence(one: Scheduled) -> str:
    assert one.cancelled is not None, "checked"
    return f"{one}: cancelled in event {one.cancelled.completed}, {one.key.sighting(one.value)}"


def _pending_sentence(one: Scheduled, before: str) -> str:
    return f"{one}: {before}, and still to be delivered, as its leader said in the end"


def _undelivered_sentence(account: Account, one: Scheduled) -> str:
    last = account.schedule.last_reads[one.key.key]
    before = one.key.sighting(one.value)
    where = [n for n, replica in one.key.replicas.items() if one.value in replica.hidden_values]
    held = f"scheduled in the logs of {where}" if where else "scheduled in no log"
    why = "; ".join(cancel.why for cancel in one.cancels if cancel.why)
    said = f"; a cancel was refused: {why}" if why else ""
    return f"{one}: not in the last reads from {last:.3f} s on; {before}; {held}{said}"


def _lost_sentence(one: Scheduled, nodes: list[int]) -> str:
    return f"{one}: neither delivered, nor scheduled in the logs of nodes {nodes}"
