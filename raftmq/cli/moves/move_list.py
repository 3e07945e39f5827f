"""`raftmq cluster moves`: which partitions move, how far they are, why one waits; cancels.

Owns the rows. Rates are measured between two looks, so they are known while watching alone.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_admin, watch
from raftmq.cli.clusters.group_reads import show_age
from raftmq.cli.moves.move_wait import CopyRates, seconds_left, show_ids, show_rate
from raftmq.cli.terminal.exits import ExitCode, exit_code_of
from raftmq.cli.terminal.output import Row, one_line, write_json, write_table
from raftmq.client.administration.checks import check_topic
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.moves import CancelledMove, PartitionMove

TITLES = ("topic", "partition", "replicas", "target", "copied", "of")
WATCHED = ("rate", "left")
NOTE = ("note",)


class MovesOptions(NamedTuple):
    """The options of one call."""

    bootstrap: str | None
    timeout: float
    as_json: bool


class MeasuredMove(NamedTuple):
    """`rate`: bytes per second; None: not known."""

    move: PartitionMove
    rate: float | None = None

    @property
    def seconds_left(self) -> float | None:
        return seconds_left(self.move, self.rate)


def list_moves(look: MovesOptions) -> int:
    moves = run_admin(_ask, look.bootstrap, look.timeout)
    _report(look, list(map(MeasuredMove, moves)), is_watching=False)
    return ExitCode.OK


def watch_moves(look: MovesOptions) -> int:
    """Print them every second until Ctrl-C."""
    rates = CopyRates()

    def report(moves: Sequence[PartitionMove]) -> None:
        known = rates.measure(moves, time.monotonic())
        found = [MeasuredMove(one, known.get((one.topic, one.partition))) for one in moves]
        _report(look, found, is_watching=True)

    return watch(_ask, report, look.bootstrap, look.timeout, as_json=look.as_json)


async def _ask(admin: Admin) -> tuple[PartitionMove, ...]:
    return await admin.moves()


def cancel_moves(partitions: Sequence[tuple[str, int]] | None, look: MovesOptions) -> int:
    """None: all of them. Exit code 1 if one of those that were named does not move."""
    for name, _ in partitions or ():
        check_topic(name)

    async def cancel(admin: Admin) -> tuple[CancelledMove, ...]:
        return await admin.cancel_moves(partitions)

    told = run_admin(cancel, look.bootstrap, look.timeout)
    if look.as_json:
        write_json(map(_cancelled_object, told))
    else:
        for one in told:
            why = "" if one.error is None else f": {one_line(one.error)}"
            sys.stdout.write(
                f"partition {one.partition} of topic {one.topic}: {one.outcome}{why}\n"
            )
        sys.stdout.write("" if told else "no partition moves, nothing to cancel\n")
    errors = [exit_code_of(one.error) for one in told if one.error is not None]
    if partitions is not None and any(one.outcome == "not moving" for one in told):
        errors.append(ExitCode.FAILED)
    return max(errors, default=ExitCode.OK)


def _cancelled_object(one: CancelledMove) -> Row:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "outcome": one.outcome,
        "error": None if one.error is None else one_line(one.error),
    }


def _report(look: MovesOptions, found: Sequence[MeasuredMove], *, is_watching: bool) -> None:
    if look.as_json:
        write_json(map(_object, found))
        return
    titles = (*TITLES, *(WATCHED if is_watching else ()), *NOTE)
    write_table(titles, [_row(one, is_watching=is_watching) for one in found])
    running = sum(one.move.is_under_way for one in found)
    sys.stdout.write(
        f"{counted(len(found), 'move')}: {running} under way, {len(found) - running} waiting\n"
        if found
        else "no partition moves\n"
    )
    sys.stdout.flush()


def _object(found: MeasuredMove) -> Row:
    move, left = found.move, found.seconds_left
    return {
        "topic": move.topic,
        "partition": move.partition,
        "replicas": list(move.replicas),
        "target": list(move.target),
        "adding": list(move.adding),
        "leader": move.leader,
        "is_under_way": move.is_under_way,
        "waits_for": move.waits_for or None,
        "bytes_done": move.bytes_done,
        "bytes_total": move.bytes_total,
        "bytes_per_second": None if found.rate is None else round(found.rate),
        "seconds_left": None if left is None else round(left, 1),
    }


def _row(found: MeasuredMove, *, is_watching: bool) -> tuple[object, ...]:
    move = found.move
    rate = None if found.rate is None else show_rate(found.rate)
    watched = (rate, show_age(found.seconds_left)) if is_watching else ()
    return (
        move.topic,
        move.partition,
        show_ids(move.replicas),
        show_ids(move.target),
        move.bytes_done,
        move.bytes_total,
        *watched,
        _note(move),
    )


def _note(move: PartitionMove) -> str:
    if move.is_under_way:
        return f"stands: {move.waits_for}" if move.waits_for else "under way"
    return f"waits: {move.waits_for}" if move.waits_for else "waits for its turn"
