"""What brokers answer to administrators: topics, settings, old records, leaders, moves.

Time is virtual: tests take `autojump_clock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import ErrorCode
from raftmq.topic_config import TOPIC_KEYS
from raftmq.wire.messages.cluster import DescribeCluster
from raftmq.wire.messages.configs import AlterConfigs, ConfigChange, DescribeConfigs
from raftmq.wire.messages.moves import ListMoves, MovePartitions, WantedMove
from raftmq.wire.messages.offsets import EARLIEST
from raftmq.wire.messages.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteRecords,
    DeleteTopics,
    DescribeTopics,
    ElectLeaders,
    MorePartitions,
    NewTopic,
    RecordsToDelete,
    WantedElection,
)
from tests.unit.client.conformance.data_scenarios import NOWHERE, list_offset
from tests.unit.client.conformance.harness import (
    PATIENCE_SECONDS,
    Scenario,
    batch,
    collect_into,
    fetch,
    metadata_of,
    place_of,
    produce,
    topic,
)

if TYPE_CHECKING:
    from tests.unit.client.conformance.harness import Harness, Place

ADMIN_SCENARIOS: list[Scenario] = []
scenario = collect_into(ADMIN_SCENARIOS)

KEY, OTHER_KEY = "retention.ms", "max.message.bytes"


async def create(here: Harness, name: str, partition_count: int = 1, **configs: str) -> Any:
    wanted = NewTopic(name, partition_count, 1, configs=configs)
    (created,) = (await here.ask(1, CreateTopics((wanted,)))).body.topics
    assert created.name == name
    return created


# Topics


@scenario
async def a_topic_is_created_once(here: Harness) -> None:
    """The answer has its id and its numbers; a second one of that name is refused."""
    created = await create(here, "t", 3)
    assert (created.error, created.message, len(created.topic_id)) == (ErrorCode.NONE, "", 16)
    assert (created.partition_count, created.replication_factor) == (3, 1)
    (told,) = (await metadata_of(here, "t")).topics
    assert (told.topic_id, len(told.partitions)) == (created.topic_id, 3)
    again = await create(here, "t")
    assert (again.error, again.topic_id) == (ErrorCode.TOPIC_ALREADY_EXISTS, None)
    assert again.message


@scenario
async def a_setting_that_is_none_makes_no_topic(here: Harness) -> None:
    for configs in ({KEY: "soon"}, {"retention": "1"}):
        refused = await create(here, "t", **configs)
        assert (refused.error, refused.topic_id) == (ErrorCode.INVALID_CONFIG, None)
    assert (await metadata_of(here, "t")).topics[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@scenario
async def a_topic_is_deleted_once(here: Harness) -> None:
    """By its id: another one of the same name is another topic."""
    first = await create(here, "t")
    for error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
        (told,) = (await here.ask(1, DeleteTopics((first.topic_id,)))).body.topics
        assert (told.topic_id, told.error) == (first.topic_id, error)
    assert (await metadata_of(here, "t")).topics[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await create(here, "t")).topic_id != first.topic_id


@scenario
async def partitions_become_more_and_never_fewer(here: Harness) -> None:
    created = await create(here, "t", 2)
    for topic_id, count, error in (
        (created.topic_id, 4, ErrorCode.NONE),
        (created.topic_id, 4, ErrorCode.INVALID_PARTITIONS),
        (created.topic_id, 3, ErrorCode.INVALID_PARTITIONS),
        (NOWHERE.topic_id, 5, ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        answer = await here.ask(1, CreatePartitions((MorePartitions(topic_id, count),)))
        (told,) = answer.body.topics
        assert (told.topic_id, told.error, bool(told.message)) == (topic_id, error, bool(error))
    assert len((await metadata_of(here, "t")).topics[0].partitions) == 4


@scenario
async def a_topic_is_described_with_what_was_set(here: Harness) -> None:
    created = await create(here, "t", 2, **{KEY: "5000"})
    for name, error in (("t", ErrorCode.NONE), ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
        body = (await here.ask(1, DescribeTopics((name,)))).body
        (told,) = body.topics
        assert (told.name, told.error, bool(told.message)) == (name, error, bool(error))
        assert body.next is None
        if error:
            assert (told.topic_id, told.partitions, told.configs) == (None, (), {})
            continue
        assert (told.topic_id, told.partition_count) == (created.topic_id, 2)
        assert told.configs == {KEY: "5000"}
        assert [one.partition for one in told.partitions] == [0, 1]
        assert all(one.replicas == one.isr for one in told.partitions)
        assert all(one.leader in one.replicas for one in told.partitions)


# Settings


async def described(here: Harness, topic_id: bytes) -> Any:
    (told,) = (await here.ask(1, DescribeConfigs((topic_id,)))).body.topics
    assert told.topic_id == topic_id
    return told


async def alter(here: Harness, topic_id: bytes, **changes: str | None) -> ErrorCode:
    request = AlterConfigs((ConfigChange(topic_id, changes),))
    (told,) = (await here.ask(1, request)).body.topics
    assert (told.topic_id, bool(told.message)) == (topic_id, bool(told.error))
    return ErrorCode(told.error)


@scenario
async def settings_are_set_and_reset_one_by_one(here: Harness) -> None:
    """All known keys are told, with their defaults where nothing was set."""
    topic_id = (await create(here, "t", 1, **{OTHER_KEY: "9999"})).topic_id
    default = {one.name: one.value for one in (await described(here, topic_id)).entries}[KEY]
    for changes, value, is_default in (
        ({KEY: "5000"}, "5000", False),
        ({KEY: None}, default, True),
    ):
        assert await alter(here, topic_id, **changes) == ErrorCode.NONE
        told = await described(here, topic_id)
        assert told.error == ErrorCode.NONE
        entries = {one.name: (one.value, one.is_default) for one in told.entries}
        assert entries.keys() == {key.name for key in TOPIC_KEYS}
        assert entries[KEY] == (value, is_default)
        assert entries[OTHER_KEY] == ("9999", False)


@scenario
async def settings_that_are_none_change_nothing(here: Harness) -> None:
    topic_id = (await create(here, "t")).topic_id
    before = (await described(here, topic_id)).entries
    assert await alter(here, topic_id, **{OTHER_KEY: "9999", KEY: "x"}) == ErrorCode.INVALID_CONFIG
    assert (await described(here, topic_id)).entries == before
    unknown = NOWHERE.topic_id
    assert await alter(here, unknown, **{KEY: "5000"}) == ErrorCode.UNKNOWN_TOPIC_ID
    told = await described(here, unknown)
    assert (told.error, told.entries) == (ErrorCode.UNKNOWN_TOPIC_ID, ())


# Old records


async def delete(here: Harness, place: Place, before: int, by: int | None = None) -> Any:
    request = DeleteRecords((RecordsToDelete(place.topic_id, place.partition, before),))
    broker_id = place.leader if by is None else by
    (told,) = (await here.ask(broker_id, request)).body.partitions
    assert (told.topic_id, told.partition) == place[:2]
    return told


@scenario
async def records_are_deleted_from_the_start(here: Harness) -> None:
    """Up to an offset, up to the end, never back, and not beyond the end."""
    place = await topic(here)
    await produce(here, place, batch(b"a", b"b"), batch(b"c"))
    for before, error, start in (
        (2, ErrorCode.NONE, 2),
        (1, ErrorCode.NONE, 2),
        (4, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
    ):
        told = await delete(here, place, before)
        assert (told.error, told.log_start_offset) == (error, start)
    assert (await list_offset(here, place, EARLIEST)).offset == 2
    found, _ = await fetch(here, place, 1)
    assert (found.error, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
    assert (await delete(here, place, -1)).log_start_offset == 3
    assert (await fetch(here, place, 3)).data == b""
    sent = await produce(here, place, batch(b"d"))
    assert (sent.base_offset, sent.log_start_offset) == (3, 3)


@scenario
async def only_the_leader_deletes_records(here: Harness) -> None:
    place = await topic(here)
    await produce(here, place, batch(b"a"))
    elsewhere = await delete(here, place, 1, by=place.other)
    assert elsewhere.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    unknown = await delete(here, NOWHERE._replace(leader=place.leader), 1)
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await list_offset(here, place, EARLIEST)).offset == 0


# Leaders, brokers


@scenario
async def an_election_that_is_not_needed(here: Harness) -> None:
    """The preferred leader leads already; a partition that is not there has none."""
    place = await topic(here)
    for wanted, error in (
        (place, ErrorCode.ELECTION_NOT_NEEDED),
        (NOWHERE, ErrorCode.UNKNOWN_TOPIC_ID),
        (place._replace(partition=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        request = ElectLeaders((WantedElection(*wanted[:2], -1),))
        (told,) = (await here.ask(1, request)).body.partitions
        assert (told.topic_id, told.partition, told.error) == (*wanted[:2], error)


@scenario
async def a_cluster_is_described_as_its_metadata_has_it(here: Harness) -> None:
    await topic(here)
    told, metadata = (await here.ask(1, DescribeCluster())).body, await metadata_of(here, "t")
    assert (told.cluster_id, told.controller_id) == (metadata.cluster_id, metadata.controller_id)
    assert told.feature_level > 0
    for row, broker in zip(metadata.brokers, told.brokers, strict=True):
        assert broker.broker_id == row.broker_id
        assert not broker.is_fenced
        addresses = {one.listener: (one.host, one.port) for one in broker.listeners}
        assert addresses["clients"] == (row.host, row.port)
    assert await place_of(here)


# Moves


async def moves_in(here: Harness) -> dict[tuple[bytes, int], Any]:
    """By topic id and partition, as the controller has them."""
    controller = (await here.ask(1, DescribeCluster())).body.controller_id
    body = (await here.ask(controller, ListMoves())).body
    assert (len(body.moves), body.next) == (body.count, None)
    return {(row.topic_id, row.partition): row for row in body.moves}


async def plan(here: Harness, place: Place, replicas: tuple[int, ...] | None) -> ErrorCode:
    """None: a cancel."""
    request = MovePartitions((WantedMove(*place[:2], replicas),))
    (told,) = (await here.ask(1, request)).body.partitions
    assert (told.topic_id, told.partition, bool(told.message)) == (*place[:2], bool(told.error))
    return ErrorCode(told.error)


async def wait_settled(here: Harness, place: Place, target: tuple[int, ...]) -> None:
    """Until it has these replicas and moves no more; or moves to them."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            row = (await moves_in(here)).get(place[:2])
            if target == (await replicas_of(here) if row is None else row.target):
                return
            await trio.sleep(0.1)


async def replicas_of(here: Harness) -> tuple[int, ...]:
    replicas: tuple[int, ...] = (await metadata_of(here, "t")).topics[0].partitions[0].replicas
    return replicas


@scenario
async def moves_that_are_refused(here: Harness) -> None:
    """Of what is not there, to brokers that are not there, twice to the same, to none."""
    assert await moves_in(here) == {}
    place = await topic(here)
    before = await replicas_of(here)
    for wanted, replicas, error in (
        (NOWHERE, (1,), ErrorCode.UNKNOWN_TOPIC_ID),
        (place._replace(partition=7), (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (place, (place.leader, 99), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (place, (place.leader, place.leader), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (place, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NOWHERE, None, ErrorCode.UNKNOWN_TOPIC_ID),
        (place, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ):
        assert await plan(here, wanted, replicas) == error, (replicas, error)
    assert (await moves_in(here), await replicas_of(here)) == ({}, before)


@scenario
async def a_move_is_planned_and_taken_back(here: Harness) -> None:
    """The later plan counts; what is not listed any more has the replicas that were asked for."""
    await moves_in(here)
    place = await topic(here)
    for replicas in ((place.leader, place.other), (place.other,)):
        assert await plan(here, place, replicas) == ErrorCode.NONE
        await wait_settled(here, place, replicas)
    # In time, or too late.
    assert await plan(here, place, None) in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    assert await moves_in(here) == {}
    assert await plan(here, place, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@scenario
async def a_move_to_where_it_is(here: Harness) -> None:
    """Nothing is to be done, and that is no error."""
    await moves_in(here)
    place = await topic(here)
    before = await replicas_of(here)
    assert await plan(here, place, before) == ErrorCode.NONE
    await wait_settled(here, place, before)
    assert await replicas_of(here) == before
