"""`raftmq cluster health`: check once, wait until the cluster is healthy, or check every second.

Owns the words of the verdict and its exit code. Waiting and watching tolerate a cluster that does
not answer for a while; a single check fails at once.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from raftmq.cli.clusters.connected import (
    ANSWER_SECONDS_MAX,
    GRACE_SECONDS,
    run_admin,
    run_connected,
    try_ask,
    watch,
)
from raftmq.cli.clusters.topic_reads import NAMED_MAX, name_partitions
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import Row, write_items, write_json
from raftmq.cli.terminal.program import as_called
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import AilingPartition, Health, WrongClock
    from raftmq.client.client import Client

WAIT_SECONDS = 0.5  # between checks of --wait: a script's start is delayed by as much
SPANS = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000))


class HealthOptions(NamedTuple):
    """The options of one call."""

    bootstrap: str | None
    timeout: float
    as_json: bool


def look_once(look: HealthOptions) -> int:
    return _report(look, run_admin(_ask, look.bootstrap, look.timeout))


def wait_healthy(look: HealthOptions) -> int:
    """The last answer decides; problems before it are printed to stderr, each time they change."""
    health = run_connected(_wait, look.bootstrap, timeout_seconds=look.timeout, is_patient=True)
    return _report(look, health)


async def _wait(client: Client) -> Health:
    """Health once all is well, or the last known when the time is over.

    Raises:
        CommandError: no broker has answered at all.
    """
    # End before `run_connected` cancels, with a message that says what is wrong.
    deadline = anyio.current_effective_deadline() - GRACE_SECONDS
    last: Health | None = None
    said = ""
    while True:
        left = deadline - anyio.current_time()
        health, what = await try_ask(client.admin, _ask, min(left, ANSWER_SECONDS_MAX))
        if health is not None:
            last, what = health, "; ".join(problems_of(health)) or "healthy"
        # Also near the deadline: another answer after the pause would come too late.
        if last is not None and (last.is_healthy or left <= WAIT_SECONDS):
            return last
        if left <= WAIT_SECONDS:
            raise CommandError(what, ExitCode.UNREACHABLE)
        # Once for each change, not twice a second.
        if what != said:
            sys.stderr.write(f"raftmq: waiting: {what}\n")
            said = what
        await anyio.sleep(WAIT_SECONDS)


def watch_health(look: HealthOptions) -> int:
    """Print the health every second until Ctrl-C."""
    report = partial(_report, look)
    return watch(_ask, report, look.bootstrap, look.timeout, as_json=look.as_json)


async def _ask(admin: Admin) -> Health:
    return await admin.health()


def _report(look: HealthOptions, health: Health) -> int:
    if look.as_json:
        write_json([_object(health)])
    else:
        verdict, *told = _lines(health)
        sys.stdout.write(f"{verdict}\n")
        write_items(told)
    return ExitCode.OK if health.is_healthy else ExitCode.UNHEALTHY


def _lines(health: Health) -> list[str]:
    what = (
        f"cluster {health.cluster_id}: {counted(health.broker_count, 'broker')},"
        f" {counted(health.topic_count, 'topic')}, {counted(health.partition_count, 'partition')}"
    )
    found = problems_of(health)
    told = [*found, *(f"warning: {each}" for each in warnings_of(health))]
    return [f"{'unhealthy' if found else 'healthy'}: {what}", *told]


def problems_of(health: Health) -> list[str]:
    """A line for each kind of problem, worst first. Any of them makes the cluster unhealthy."""
    found = []
    if health.controller_id is None:
        found.append(
            as_called(
                "the quorum has no leader: nothing can be changed, see `raftmq quorum status`"
            )
        )
    if health.leaderless:
        found.append(f"no leader, so neither written nor read: {_named(health.leaderless)}")
    if health.brokers_down:
        down = _at(health, health.brokers_down)
        found.append(f"{'broker' if len(health.brokers_down) == 1 else 'brokers'} down: {down}")
    if health.silent:
        verb = "broker does" if len(health.silent) == 1 else "brokers do"
        found.append(f"{verb} not answer: {_at(health, health.silent)}")
    if health.under_replicated:
        found.append(f"replicas not in sync: {_named(health.under_replicated)}")
    for one in health.damaged[:NAMED_MAX]:
        where = f"{one.topic}-{one.partition} on broker {one.broker_id}"
        found.append(f"ailing replica: {where} from offset {one.offset} on: {one.what}")
    more = health.damaged_count - min(len(health.damaged), NAMED_MAX)
    if more > 0:
        found.append(counted(more, "more ailing replica"))
    found += _transactions(health)
    if health.wrong_clocks:
        found.append(
            f"clocks wrong: {', '.join(map(_clock, health.wrong_clocks))} (against the others'):"
            " deletes nothing for its age, set it right"
        )
    return found


def _transactions(health: Health) -> list[str]:
    found = []
    if health.held:
        where = name_partitions([(one.topic, one.partition) for one in health.held])
        see = as_called("see `raftmq transaction open TOPIC`")
        found.append(f"transactions open for too long, readers wait: {where}; {see}")
    if health.unsettled:
        names = _listed([one.transaction_id for one in health.unsettled])
        see = as_called("see `raftmq transaction describe ID`")
        found.append(f"commits not settled for a minute: of {names}; {see}")
    return found


def warnings_of(health: Health) -> list[str]:
    """What the loss of one broker or host would stop; it does not make the cluster unhealthy."""
    topics: dict[str, list[str]] = {}
    for one in health.fragile:
        topics.setdefault(one.warning, []).append(one.topic)
    found = [f"{_listed(names)}: {warning}" for warning, names in sorted(topics.items())]
    for host, voters in sorted(health.voters_together.items()):
        found.append(
            f"voters {' and '.join(map(str, voters))} are on one host, {host}, and fail together"
        )
    return found


def _at(health: Health, brokers: Sequence[int]) -> str:
    """`2 (host2:9292), 3 (host3:9292)`"""
    known = health.addresses
    return ", ".join(f"{one} ({known[one]})" if one in known else str(one) for one in brokers)


def _clock(wrong: WrongClock) -> str:
    return f"broker {wrong.broker_id} is {_span(abs(wrong.ahead_ms))} " + (
        "ahead" if wrong.ahead_ms >= 0 else "behind"
    )


def _span(milliseconds: int) -> str:
    for unit, length in SPANS:
        # From two on: "90 minutes" is more precise than "2 hours", and needs no singular.
        if milliseconds >= 2 * length:
            return f"{round(milliseconds / length)} {unit}"
    return f"{milliseconds} ms"


def _named(partitions: Sequence[AilingPartition]) -> str:
    return name_partitions([(one.topic, one.partition) for one in partitions])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _object(health: Health) -> Row:
    return {
        "is_healthy": health.is_healthy,
        "cluster_id": health.cluster_id,
        "controller_id": health.controller_id,
        "brokers": health.broker_count,
        "topics": health.topic_count,
        "partitions": health.partition_count,
        "brokers_down": list(health.brokers_down),
        "silent": list(health.silent),
        "addresses": {str(one): str(address) for one, address in health.addresses.items()},
        "leaderless": msgspec.to_builtins(health.leaderless),
        "under_replicated": msgspec.to_builtins(health.under_replicated),
        "fragile": msgspec.to_builtins(health.fragile),
        "wrong_clocks": msgspec.to_builtins(health.wrong_clocks),
        "damaged": msgspec.to_builtins(health.damaged),
        "damaged_count": health.damaged_count,
        "held": msgspec.to_builtins(health.held),
        "unsettled": msgspec.to_builtins(health.unsettled),
        "voters_together": {host: list(ids) for host, ids in health.voters_together.items()},
    }
