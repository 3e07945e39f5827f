"""Fixtures: processes of three nodes on directories of their own, judged at the end.

A test that uses one fails if its ledger has a finding at the end, whatever else it checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.quorum_cluster import QuorumCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[QuorumCluster]:
    """Running, with snapshots so often that every test sees some."""
    directories = {node_id: tmp_path / str(node_id) for node_id in (1, 2, 3)}
    with QuorumCluster(directories, snapshot_entries=400, trailing_entries=100) as cluster:
        cluster.start_all()
        yield cluster
        assert not cluster.ledger.findings


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerCluster]:
    """Running, without clients yet."""
    with BrokerCluster(tmp_path) as cluster:
        cluster.start_all()
        yield cluster
        assert not cluster.ledger.findings
