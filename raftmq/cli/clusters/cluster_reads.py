"""`raftmq cluster status` and `info`: brokers, the partitions they lead, listeners and voters.

Reads only; what is not known is printed as `-`, and null in JSON.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import Row, write_json, write_table
from raftmq.cli.terminal.program import as_called
from raftmq.client.administration.results import BrokerLoad
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import (
        BrokerDetails,
        ClusterDetails,
        Health,
    )
    from raftmq.model import Address

NOTHING = BrokerLoad(0, 0, 0)  # of a broker without replicas, which `broker_loads` leaves out
STALE = (
    "the quorum has no leader: states, leaders and numbers are the last known, and may be old; see"
    " `raftmq quorum status`"
)
STATUS_TITLES = ("broker", "address", "rack", "state", "role", "leads", "replicas", "not in sync")
LISTENER_TITLES = ("node", "listener", "address", "rack", "state", "version")


class ClusterSnapshot(NamedTuple):
    details: ClusterDetails
    health: Health
    loads: dict[int, BrokerLoad]


def show_status(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    async def ask(admin: Admin) -> ClusterSnapshot:
        return ClusterSnapshot(
            await admin.describe_cluster(), await admin.health(), await admin.broker_loads()
        )

    seen = run_admin(ask, bootstrap, timeout)
    _warn_if_stale(seen.details)
    if as_json:
        write_json(_status_objects(seen))
        return ExitCode.OK
    write_table(STATUS_TITLES, [_status_row(seen, one) for one in seen.details.brokers])
    health = seen.health
    sys.stdout.write(
        f"\ncluster {health.cluster_id}: {counted(health.topic_count, 'topic')},"
        f" {counted(health.partition_count, 'partition')}, {len(health.leaderless)} leaderless,"
        f" {len(health.under_replicated)} under-replicated\n"
    )
    return ExitCode.OK


def show_info(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    details = run_admin(lambda admin: admin.describe_cluster(), bootstrap, timeout)
    _warn_if_stale(details)
    if as_json:
        write_json([_info_object(details)])
        return ExitCode.OK
    controller = "none" if details.controller_id is None else f"broker {details.controller_id}"
    sys.stdout.write(
        f"cluster {details.cluster_id}, controller: {controller}, feature level"
        f" {details.feature_level}, metadata version {details.metadata_version}\n\n"
    )
    write_table(LISTENER_TITLES, _listener_rows(details))
    return ExitCode.OK


def _warn_if_stale(details: ClusterDetails) -> None:
    if details.controller_id is None:
        sys.stderr.write(as_called(f"raftmq: {STALE}\n"))


def _status_objects(seen: ClusterSnapshot) -> Iterator[Row]:
    for one in seen.details.brokers:
        load = seen.loads.get(one.broker_id, NOTHING)
        yield {
            "type": "broker",
            "broker_id": one.broker_id,
            "address": _text(one.address),
            "rack": one.rack,
            "state": one.state,
            "is_controller": one.broker_id == seen.details.controller_id,
            "leads": load.leads,
            "replicas": load.replicas,
            "not_in_sync": load.not_in_sync,
        }
    health = seen.health
    yield {
        "type": "summary",
        "cluster_id": health.cluster_id,
        "controller_id": health.controller_id,
        "brokers": len(seen.details.brokers),
        "topics": health.topic_count,
        "partitions": health.partition_count,
        "leaderless": len(health.leaderless),
        "under_replicated": len(health.under_replicated),
    }


def _status_row(seen: ClusterSnapshot, one: BrokerDetails) -> tuple[object, ...]:
    load = seen.loads.get(one.broker_id, NOTHING)
    role = "controller" if one.broker_id == seen.details.controller_id else None
    counts = load.leads, load.replicas, load.not_in_sync
    return one.broker_id, one.address, one.rack, one.state, role, *counts


def _info_object(details: ClusterDetails) -> Row:
    return {
        "cluster_id": details.cluster_id,
        "controller_id": details.controller_id,
        "metadata_version": details.metadata_version,
        "feature_level": details.feature_level,
        "brokers": [
            {
                "broker_id": one.broker_id,
                "address": _text(one.address),
                "rack": one.rack,
                "state": one.state,
                "version": one.software_version,
                "listeners": {name: str(at) for name, at in one.listeners.items()},
            }
            for one in details.brokers
        ],
        "voters": [
            {"node_id": node_id, "address": str(address)}
            for node_id, address in details.voters.items()
        ],
    }


def _listener_rows(details: ClusterDetails) -> Iterator[tuple[object, ...]]:
    """A voter's port is no listener, but a firewall has to let it through, too."""
    for one in details.brokers:
        for name, address in one.listeners.items():
            yield one.broker_id, name, address, one.rack, one.state, one.software_version
    for node_id, address in details.voters.items():
        yield node_id, "(voters)", address, None, None, None


def _text(address: Address | None) -> str | None:
    return None if address is None else str(address)
