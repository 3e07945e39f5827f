"""Numbers of requests: for ever the same, known to both sides, and asked by whom they may be."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from raftmq.wire import messages
from raftmq.wire.bodies import Nothing, Request
from raftmq.wire.messages import FAMILIES, REQUESTS
from raftmq.wire.messages.cluster import Ping
from raftmq.wire.messages.corruption import DescribeDamage, ReportCorruption
from raftmq.wire.messages.hello import ApiVersions, versions_of
from raftmq.wire.messages.producers import FenceProducer
from raftmq.wire.messages.scheduled import CancelScheduled, ListScheduled
from raftmq.wire.messages.transactions import (
    DescribeOverdue,
    ForgetTransaction,
    JoinTransaction,
)

# On the wire, and never changed. Below 1000: Kafka's protocol guide, "Api Keys".
NUMBERS = {
    "Produce": 0, "Fetch": 1, "ListOffsets": 2, "Metadata": 3, "OffsetCommit": 8, "OffsetFetch": 9,
    "FindCoordinator": 10, "JoinGroup": 11, "Heartbeat": 12, "LeaveGroup": 13, "SyncGroup": 14,
    "DescribeGroups": 15, "ListGroups": 16, "Hello": 18, "CreateTopics": 19, "DeleteTopics": 20,
    "DeleteRecords": 21, "InitProducerId": 22, "DeleteGroups": 42, "OffsetDelete": 47,
    "OffsetForLeaderEpoch": 23, "DescribeConfigs": 32, "DescribeLogs": 35, "CreatePartitions": 37,
    "ElectLeaders": 43, "AlterConfigs": 44, "DescribeCluster": 60, "DescribeTopics": 75,
    "MovePartitions": 45, "ListMoves": 46,
    "Ping": 1000,
    "ReplicaFetch": 1001, "ReplicaProgress": 1002, "Propose": 1003, "BrokerHeartbeat": 1004,
    "ReadBarrier": 1005, "FenceProducer": 1006, "ReportCorruption": 1007, "DescribeDamage": 1008,
    "EndTxn": 26, "DescribeProducers": 61, "DescribeTransactions": 65, "ListTransactions": 66,
    "TransactionsSettled": 1010, "ForgetTransaction": 1011, "DescribeOverdue": 1012,
    "JoinTransaction": 1013, "CancelScheduled": 1014, "ListScheduled": 1015,
}  # fmt: skip


def test_numbers_of_requests_stay() -> None:
    """A broker of another version means the same request by the same number."""
    assert {kind.__name__: number for (number, _), kind in REQUESTS.items()} == NUMBERS


def test_what_is_supported_is_what_is_known() -> None:
    """Each number has a class for each version in its range, and there is no other class."""
    promised = {
        (told.api_key, version)
        for told in versions_of(REQUESTS.values())
        for version in range(told.version_min, told.version_max + 1)
    }
    assert promised == set(REQUESTS)


def test_the_versions_of_a_request_are_told_as_one_range() -> None:
    """Two classes with one number: both ends, and the numbers in order (A2.7)."""

    class Older(NamedTuple):
        api_key: int
        version: int

    kinds = (Older(9, 1), Older(3, 0), Older(9, 0))
    assert versions_of(kinds) == (ApiVersions(3, 0, 0), ApiVersions(9, 0, 1))  # type: ignore[arg-type]


def test_two_requests_do_not_share_a_number() -> None:
    """The second class is refused where it is defined, and the first one stays."""
    with pytest.raises(AssertionError, match="Pong has the number of Ping, 1000"):

        class Pong(Request, frozen=True):
            api_key = 1000
            reply = Nothing

    assert REQUESTS[1000, 0] is Ping


def test_every_family_is_known() -> None:
    """A module that was forgotten would leave its requests unknown to brokers."""
    modules = Path(messages.__file__).parent.glob("[!_]*.py")
    assert {path.stem for path in modules} == {
        family.__name__.rpartition(".")[2] for family in FAMILIES
    }


def test_clients_ask_for_nothing_that_brokers_owe_each_other() -> None:
    """Replication, proposals and heartbeats; whatever else begins at 1000 is for all."""
    for_all = {Ping, FenceProducer, ReportCorruption, DescribeDamage, ForgetTransaction}
    for_all |= {DescribeOverdue, JoinTransaction, CancelScheduled, ListScheduled}
    ours = {kind for (number, _), kind in REQUESTS.items() if number >= Ping.api_key}
    assert ours - for_all == {kind for kind in REQUESTS.values() if kind.is_for_brokers}


def test_what_goes_one_way_has_nothing_to_answer() -> None:
    """Nobody waits for a reply that would tell something."""
    assert {kind.reply for kind in REQUESTS.values() if kind.is_one_way} == {Nothing}
