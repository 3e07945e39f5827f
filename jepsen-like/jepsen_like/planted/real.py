"""The planted bugs for real clusters, each with the run and the findings by which it must be found.

A bug of clients is planted in the harness, where they run; all others in every node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jepsen_like.planted import (
    brokers,
    clients,
    disks,
    groups,
    metadata,
    replicas,
    retries,
    schedules,
    transactions,
)
from jepsen_like.planted.patch import ForGood
from jepsen_like.settings import RunSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.planted.patch import Patch


class Bug(NamedTuple):
    """Attributes:
    found_as: findings of which one at least must be there.
    settings: of the run; a few seconds must do.
    """

    plant: Callable[[Patch], None]
    found_as: tuple[str, ...]
    settings: RunSettings
    is_of_clients: bool = False


def _queue(*kinds: str, seconds: float = 30.0, seed: int = 1, pace: float = 2.5) -> RunSettings:
    return RunSettings(
        nemesis=kinds, time_limit=seconds, seed=seed, pace=pace, acks=("all",), rate=100.0
    )


def _groups(*kinds: str, seed: int = 1) -> RunSettings:
    return RunSettings(workload="groups", nemesis=kinds, time_limit=60.0, seed=seed, pace=2.5)


def _transactions(*kinds: str, seconds: float = 90.0, seed: int = 1) -> RunSettings:
    return RunSettings(
        workload="transactions",
        nemesis=kinds,
        time_limit=seconds,
        seed=seed,
        pace=2.5,
        processes=9,
    )


def _schedule(*kinds: str, seconds: float = 25.0, seed: int = 1) -> RunSettings:
    return RunSettings(workload="schedule", nemesis=kinds, time_limit=seconds, seed=seed, pace=2.5)


def _retries(*kinds: str, seconds: float = 25.0, seed: int = 1) -> RunSettings:
    return RunSettings(workload="retries", nemesis=kinds, time_limit=seconds, seed=seed, pace=2.5)


OF_OFFSETS = ("offset-linearizable", "commit-back")
LOST = ("lost-write", "lost-on-node", "inconsistent-offsets", "replica-divergence", "unseen")
HALF = ("torn-transaction", "lost-transaction")

_ALL = (
    Bug(disks.no_fsync, LOST, _queue("powercut")),
    Bug(replicas.ack_before_followers_hold, LOST, _queue("stranded-leader", seconds=60.0)),
    Bug(
        replicas.read_above_the_high_watermark,
        (*LOST, "aborted-read", "high-watermark-back"),
        _queue("stranded-leader", seconds=60.0),
    ),
    Bug(brokers.believe_the_own_clock, LOST, _queue("clock")),
    Bug(
        brokers.elect_anybody,
        LOST,
        msgspec.structs.replace(_queue("pause-kill", seconds=80.0), nodes=5),
    ),
    Bug(brokers.elect_in_the_same_epoch, ("two-leaders",), _queue("kill")),
    Bug(replicas.skip_the_divergence_answer, LOST, _queue("stranded-leader", seconds=60.0)),
    Bug(disks.damage_is_not_looked_for, (*LOST, "not-healed"), _queue("bitflip")),
    Bug(
        clients.deny_what_may_have_happened,
        ("aborted-read",),
        _queue("partition", "pause"),
        is_of_clients=True,
    ),
    Bug(replicas.numbers_are_not_looked_at, ("duplicate",), _queue("reset", "kill")),
    Bug(
        metadata.overwrite_what_was_not_expected,
        ("not-linearizable",),
        RunSettings(workload="metadata", nemesis=("pause",), time_limit=20.0, seed=1),
    ),
    Bug(
        groups.commits_of_any_generation, ("zombie-commit", "commit-back"), _groups("pause", seed=5)
    ),
    Bug(groups.answer_a_commit_before_it_is_applied, OF_OFFSETS, _groups("kill")),
    Bug(
        groups.tell_offsets_as_they_are_known_here,
        OF_OFFSETS,
        _groups("partition", "pause", seed=5),
    ),
    Bug(groups.go_on_with_what_was_given_up, ("overlap",), _groups("kill"), is_of_clients=True),
    Bug(
        transactions.late_batch_joins_next,
        (*HALF, "precommitted-read", "stuck-transaction"),
        _transactions("kill", seconds=30.0),
    ),
    Bug(
        transactions.offsets_by_old_generation,
        ("duplicate-effect", "torn-transaction", "lost-transaction-offset"),
        _transactions("pause", "kill"),
    ),
    Bug(
        transactions.unlisted_member_commits,
        ("aborted-transaction-read", *HALF),
        _transactions("kill", seconds=30.0),
    ),
    Bug(schedules.followers_settle_nothing, ("delivered-twice",), _schedule("kill")),
    Bug(schedules.due_within_the_second, ("early-delivery",), _schedule("kill", seconds=10.0)),
    Bug(
        schedules.cancels_what_was_delivered,
        ("cancelled-delivery",),
        _schedule("kill", seconds=15.0),
    ),
    Bug(schedules.handle_cancels_its_batch, ("undelivered",), _schedule("kill", seconds=15.0)),
    Bug(
        retries.commit_before_the_move,
        ("lost-retry",),
        _retries("kill", seconds=40.0),
        is_of_clients=True,
    ),
    Bug(
        retries.moves_outside_of_the_transaction,
        ("retry-duplicate",),
        _retries("kill", seconds=40.0),
        is_of_clients=True,
    ),
    Bug(
        retries.attempts_are_not_counted_on,
        ("unfinished-retries", "retry-duplicate"),
        _retries("kill"),
        is_of_clients=True,
    ),
    Bug(
        retries.retries_come_at_once,
        ("early-retry",),
        _retries("kill"),
        is_of_clients=True,
    ),
)

BUGS = {bug.plant.__name__: bug for bug in _ALL}


def plant_in_node(name: str) -> None:
    bug = BUGS[name]
    if not bug.is_of_clients:
        bug.plant(ForGood())


def plant_in_clients(name: str) -> None:
    bug = BUGS[name]
    if bug.is_of_clients:
        bug.plant(ForGood())
