"""`raftmq cluster leaders`: partitions that others lead than their preferred leaders; elect these.

Owns the rows. Which replica is preferred, and whether it may lead, is decided by the cluster.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import Row, check_can_ask, confirm, write_json, write_table
from raftmq.cli.terminal.program import as_called
from raftmq.client.administration.checks import check_topic
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import PartitionLeader

TITLES = ("topic", "partition", "leader", "preferred", "isr")


class BalancedPartition(NamedTuple):
    """What became of an election; `error`: why it has failed, empty: it has not."""

    now: PartitionLeader
    error: str


def show_leaders(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    found = run_admin(lambda admin: admin.partition_leaders(), bootstrap, timeout)
    if as_json:
        write_json(map(_object, found))
        return ExitCode.OK
    moved = [one for one in found if not one.is_preferred]
    write_table(TITLES, map(_row, moved))
    what = f"{counted(len(found), 'partition')}, {len(moved)} not led by the preferred leader"
    hint = "; `raftmq cluster leaders --balance` elects it" if moved else ""
    sys.stdout.write(as_called(f"{what}{hint}\n"))
    return ExitCode.OK


def balance_leaders(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    done = run_admin(_balance, bootstrap, timeout)
    if as_json:
        write_json(_object(one.now) | {"error": one.error or None} for one in done)
    else:
        write_table((*TITLES, "error"), [(*_row(one.now), one.error) for one in done])
        failed = sum(bool(one.error) for one in done)
        sys.stdout.write(
            f"{counted(len(done) - failed, 'preferred leader')} elected, {failed} failed\n"
            if done
            else "every partition is led by its preferred leader\n"
        )
    return ExitCode.FAILED if any(one.error for one in done) else ExitCode.OK


async def _balance(admin: Admin) -> list[BalancedPartition]:
    done: list[BalancedPartition] = []
    moved = [one for one in await admin.partition_leaders() if not one.is_preferred]
    for topic, group in groupby(moved, key=lambda one: one.topic):
        before = {one.partition: one for one in group}
        for election in await admin.elect_leaders(topic, list(before)):
            one = before[election.partition]
            if election.error is not None:
                done.append(BalancedPartition(one, " ".join(str(election.error).split())))
            else:
                done.append(BalancedPartition(replace(one, leader=one.preferred), ""))
    return done


def elect_unclean(
    topic: str,
    partition: int,
    bootstrap: str | None,
    timeout: float,
    *,
    is_sure: bool,
    as_json: bool,
) -> int:
    """Elect a replica that may lack records. What has a leader is left alone."""
    check_topic(topic)
    name = f"partition {partition} of topic {topic}"
    check_can_ask(f"elect an unclean leader of {name}", is_sure=is_sure)
    question = f"Elect a replica of {name} that may lack records? They are lost for good then"
    confirm(question, is_sure=is_sure)
    (done,) = run_admin(
        lambda admin: admin.elect_leaders(topic, [partition], unclean=True), bootstrap, timeout
    )
    error = None if done.error is None else " ".join(str(done.error).split())
    if as_json:
        row = {"topic": topic, "partition": partition, "outcome": done.outcome, "error": error}
        write_json([row])
    else:
        why = "" if error is None else f": {error}"
        sys.stdout.write(as_called(f"{name}: {done.outcome}{why}\n"))
    return ExitCode.FAILED if done.outcome == "failed" else ExitCode.OK


def _object(one: PartitionLeader) -> Row:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "leader": one.leader,
        "preferred": one.preferred,
        "isr": list(one.isr),
    }


def _row(one: PartitionLeader) -> Sequence[object]:
    return one.topic, one.partition, one.leader, one.preferred, ",".join(map(str, one.isr))
