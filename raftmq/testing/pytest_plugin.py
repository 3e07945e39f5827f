"""The pytest plugin: fixtures for a broker, a cluster of three, and a topic name for each test.

pytest loads it by its entry point (`pytest11`) in every project on the machine: so it adds fixtures
and nothing else, and imports no broker before a test asks for one.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server

_NAME_LENGTH_MAX = 200  # a topic's name has room for 249, and a number follows
_numbers = count(1)


@pytest.fixture(scope="session")
def raftmq_broker() -> Iterator[Server]:
    """One broker for the whole session: a `raftmq.testing.Server`."""
    from raftmq.testing import broker

    with broker() as server:
        yield server


@pytest.fixture(scope="session")
def raftmq_cluster() -> Iterator[Server]:
    """Three brokers for the whole session. A test that stops one must start it again."""
    from raftmq.testing import cluster

    with cluster(3) as server:
        yield server


@pytest.fixture
def raftmq_topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test has, made of this test's; the topic is not made yet."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:_NAME_LENGTH_MAX]
    return f"{name}-{next(_numbers)}"
