"""`raftmq topic move`, and replication factors of `topic alter`: plan moves, and wait for them.

Owns the rows. Which brokers get replicas of a new replication factor, the client decides; when a
move begins, the cluster.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.moves.move_wait import MoveWait, show_ids
from raftmq.cli.terminal.exits import CommandError, ExitCode, exit_code_of
from raftmq.cli.terminal.output import Row, one_line, write_json, write_table
from raftmq.cli.terminal.program import as_called
from raftmq.client.administration.checks import check_moves, check_topic
from raftmq.client.administration.moves import RequestedMove
from raftmq.errors import InvalidReplicaAssignment
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin

TITLES = ("partition", "replicas", "target", "outcome")


class MoveOptions(NamedTuple):
    """The options of one call. `is_waiting`: until the moves are done."""

    bootstrap: str | None
    timeout: float
    is_waiting: bool
    as_json: bool


class FactorChange(NamedTuple):
    """A replication factor, as it was typed. `is_dry`: only show what would be planned."""

    replication_factor: int
    is_waiting: bool
    is_dry: bool


def move_partitions(name: str, partitions: Sequence[int], to: str, look: MoveOptions) -> int:
    """The partitions get these replicas, all of them the same."""
    check_topic(name)
    target = _parse_brokers(to)
    try:
        wanted = check_moves({(name, number): target for number in partitions})
    except InvalidReplicaAssignment as error:
        raise CommandError(f"--to {to}: {error}", ExitCode.USAGE) from error

    async def move(admin: Admin) -> int:
        planned = await admin.move_partitions(wanted)
        if look.is_waiting:
            return await _wait(admin, planned, as_json=look.as_json)
        if look.as_json:
            write_json(_object(one, _outcome(one)) for one in planned)
        else:
            _write_rows(planned)
            _hint(planned)
        return _exit_code(planned)

    return run_admin(move, look.bootstrap, look.timeout)


async def alter_factor(admin: Admin, name: str, change: FactorChange, *, as_json: bool) -> int:
    """Part of `topic alter`."""
    factor = change.replication_factor
    done = await admin.alter_replication_factor(name, factor, dry_run=change.is_dry)
    planned = done.moves
    if as_json and not change.is_waiting:
        rows = [_object(one, _outcome(one, is_dry=change.is_dry)) for one in planned]
        write_json([{"name": name, "replication_factor": factor, "moves": rows}])
    elif not as_json:
        many = counted(len(planned), "partition")
        verb = "would get" if change.is_dry else "to get"
        told = f"{many} {verb} other replicas" if planned else "nothing more has to be moved"
        sys.stdout.write(f"topic {name}: replication factor {factor}: {told}\n")
        _write_rows(planned, is_dry=change.is_dry)
    if done.warning:
        sys.stderr.write(f"raftmq: warning: topic {name}: {done.warning}\n")
    if change.is_waiting:
        earlier = await _moves_to(admin, name, factor)
        together = earlier | {one.partition: one for one in planned}
        return await _wait(admin, [*together.values()], as_json=as_json)
    if not (as_json or change.is_dry):
        _hint(planned)
    return _exit_code(planned)


async def _moves_to(admin: Admin, name: str, factor: int) -> dict[int, RequestedMove]:
    """By partition; also what an earlier call has planned, which may not have waited."""
    return {
        one.partition: RequestedMove(name, one.partition, one.replicas, one.target)
        for one in await admin.moves()
        if one.topic == name and len(one.target) == factor
    }


async def _wait(admin: Admin, planned: Sequence[RequestedMove], *, as_json: bool) -> int:
    """A line for each, once it is known what becomes of it."""

    def tell(one: RequestedMove, outcome: str) -> None:
        if as_json:
            write_json([_object(one, outcome)])
        else:
            why = "" if one.error is None else f": {one_line(one.error)}"
            sys.stdout.write(f"partition {one.partition} of topic {one.topic}: {outcome}{why}\n")
            sys.stdout.flush()

    refused = [one for one in planned if _is_refused(one)]
    for one in refused:
        tell(one, "failed")
    if left := [one for one in planned if not _is_refused(one)]:
        await MoveWait(left, lambda one: tell(replace(one, error=None), "moved")).run(admin)
    return _exit_code(refused)


def _parse_brokers(text: str) -> tuple[int, ...]:
    numbers = [one.strip() for one in text.split(",")]
    if not all(one.isascii() and one.isdigit() and len(one) < 10 for one in numbers):
        raise CommandError(
            f"--to {text}: expected ids of brokers, the preferred leader first, like 2,4,5",
            ExitCode.USAGE,
        )
    return tuple(map(int, numbers))


def _write_rows(planned: Sequence[RequestedMove], *, is_dry: bool = False) -> None:
    rows = [
        (one.partition, show_ids(one.replicas), show_ids(one.target), _told(one, is_dry=is_dry))
        for one in planned
    ]
    write_table(TITLES, rows)


def _told(one: RequestedMove, *, is_dry: bool) -> str:
    outcome = _outcome(one, is_dry=is_dry)
    return outcome if one.error is None else f"{outcome}: {one_line(one.error)}"


def _outcome(one: RequestedMove, *, is_dry: bool = False) -> str:
    if one.error is not None:
        return "failed" if _is_refused(one) else "unknown"
    return "not planned" if is_dry else "planned"


def _is_refused(one: RequestedMove) -> bool:
    """Otherwise it is planned, or may be."""
    return one.error is not None and one.error.definite


def _hint(planned: Sequence[RequestedMove]) -> None:
    if not all(map(_is_refused, planned)):
        sys.stdout.write(as_called("`raftmq cluster moves` shows how far they are\n"))


def _object(one: RequestedMove, outcome: str) -> Row:
    return {
        "name": one.topic,
        "partition": one.partition,
        "replicas": list(one.replicas),
        "target": list(one.target),
        "outcome": outcome,
        "error": None if one.error is None else one_line(one.error),
    }


def _exit_code(planned: Sequence[RequestedMove]) -> int:
    """Of the worst error."""
    errors = [exit_code_of(one.error) for one in planned if one.error is not None]
    return max(errors, default=ExitCode.OK)
