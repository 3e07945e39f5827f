"""The registry of workloads: those that can be run by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jepsen_like.workloads.bench import QueueSettings
from jepsen_like.workloads.groups import GroupsWorkload
from jepsen_like.workloads.metadata import MetadataWorkload
from jepsen_like.workloads.queue import QueueWorkload
from jepsen_like.workloads.reruns import RerunsWorkload
from jepsen_like.workloads.retries import RetriesWorkload
from jepsen_like.workloads.schedule import ScheduleWorkload
from jepsen_like.workloads.transactions import TransactionsWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.workloads.workload import Workload

NAMES = ("queue", "metadata", "groups", "reruns", "transactions", "schedule", "retries")


class UnknownWorkload(Exception):
    """Names the unknown workload, and those that exist."""


def check_workload(name: str) -> None:
    """Raises UnknownWorkload."""
    there_is = f"there is {', '.join(NAMES[:-1])} and {NAMES[-1]}"
    if name not in NAMES:
        raise UnknownWorkload(f"unknown workload {name!r}: {there_is}")


def make_workload(
    name: str,
    *,
    bootstrap: str | Sequence[str],
    recorder: Recorder,
    random: Random,
    node_count: int,
    processes: int,
    rate: float,
    acks: Sequence[str],
    final_seconds: float = 60.0,
) -> Workload:
    """
    Args:
        rate: operations a second of all processes together; of metadata there are fewer, and to
            groups less is sent: each record may be committed by itself, or moved. Of transactions,
            blocks.
        acks: of the topics of the queue, in turn.
        final_seconds: for the last reads of the queue, at most. Each process reads everything;
            together they read some ten thousands of records a second.

    Raises:
        UnknownWorkload
    """
    check_workload(name)
    replicas = min(3, node_count)
    if name == "metadata":
        return MetadataWorkload(
            bootstrap,
            recorder,
            random,
            processes=processes,
            rate=min(rate, 30.0),
            replication_factor=replicas,
        )
    settings = QueueSettings(
        processes=processes,
        rate=rate,
        acks=tuple(acks),
        replication_factor=replicas,
        min_insync_replicas=min(2, replicas),
        final_seconds=final_seconds,
    )
    if name == "groups":
        settings = replace(settings, rate=min(rate, 8.0), pulses_max=0)
        return GroupsWorkload(bootstrap, recorder, random, settings)
    if name == "reruns":
        return RerunsWorkload(bootstrap, recorder, random, settings)
    if name == "schedule":
        settings = replace(settings, rate=min(rate, 60.0), pulses_max=1)
        return ScheduleWorkload(bootstrap, recorder, random, settings)
    if name == "retries":
        # Some twenty records a second: a group that commits each of them handles thirty.
        settings = replace(
            settings, acks=("all",), rate=min(rate, 4.0), pulses_max=1, pulse_seconds=0.6
        )
        return RetriesWorkload(bootstrap, recorder, random, settings)
    if name == "transactions":
        settings = replace(settings, rate=min(rate, 40.0), pulses_max=1)
        return TransactionsWorkload(bootstrap, recorder, random, settings)
    return QueueWorkload(bootstrap, recorder, random, settings)
