"""Numbers of requests: for ever the same, known to both sides, and asked by whom they may be."""

from __future__ import annotations

from raftmq.wire.apis import CLUSTER_APIS, ONE_WAY, SUPPORTED, ApiKey
from raftmq.wire.bodies import Nothing
from raftmq.wire.messages import REQUESTS

# On the wire, and never changed. Below 1000: Kafka's protocol guide, "Api Keys".
NUMBERS = {
    "PRODUCE": 0, "FETCH": 1, "LIST_OFFSETS": 2, "METADATA": 3, "OFFSET_COMMIT": 8,
    "OFFSET_FETCH": 9, "FIND_COORDINATOR": 10, "JOIN_GROUP": 11, "HEARTBEAT": 12, "LEAVE_GROUP": 13,
    "SYNC_GROUP": 14, "DESCRIBE_GROUPS": 15, "LIST_GROUPS": 16, "HELLO": 18, "CREATE_TOPICS": 19,
    "DELETE_TOPICS": 20, "DELETE_RECORDS": 21, "INIT_PRODUCER_ID": 22, "DELETE_GROUPS": 42,
    "OFFSET_DELETE": 47, "OFFSET_FOR_LEADER_EPOCH": 23, "DESCRIBE_CONFIGS": 32,
    "CREATE_PARTITIONS": 37, "ELECT_LEADERS": 43, "ALTER_CONFIGS": 44, "DESCRIBE_CLUSTER": 60,
    "DESCRIBE_TOPICS": 75, "PING": 1000, "REPLICA_FETCH": 1001, "REPLICA_PROGRESS": 1002,
    "PROPOSE": 1003, "BROKER_HEARTBEAT": 1004, "READ_BARRIER": 1005, "FENCE_PRODUCER": 1006,
    "REPORT_CORRUPTION": 1007, "DESCRIBE_DAMAGE": 1008,
}  # fmt: skip


def test_numbers_of_requests_stay() -> None:
    """A broker of another version means the same request by the same number."""
    assert {key.name: key.value for key in ApiKey} == NUMBERS


def test_what_is_supported_is_what_is_known() -> None:
    """Each number has a class for each version in its range, and there is no other class."""
    promised = {
        (int(key), version)
        for key, known in SUPPORTED.items()
        for version in range(known.min, known.max + 1)
    }
    assert promised == set(REQUESTS)


def test_requests_are_called_as_their_numbers_are() -> None:
    """The class of LIST_OFFSETS is ListOffsets, and so on."""
    for cls in REQUESTS.values():
        assert cls.__name__ == cls.api_key.name.title().replace("_", "")


def test_clients_ask_for_nothing_that_brokers_owe_each_other() -> None:
    """Replication, proposals and heartbeats; whatever else begins at 1000 is for all."""
    for_all = {
        ApiKey.PING,
        ApiKey.FENCE_PRODUCER,
        ApiKey.REPORT_CORRUPTION,
        ApiKey.DESCRIBE_DAMAGE,
    }
    assert {key for key in ApiKey if key >= ApiKey.PING} - for_all == CLUSTER_APIS


def test_what_goes_one_way_has_nothing_to_answer() -> None:
    """Nobody waits for a reply that would tell something."""
    assert {REQUESTS[key, 0].reply for key in ONE_WAY} == {Nothing}
