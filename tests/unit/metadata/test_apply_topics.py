"""Topics in the metadata: creation, growth, configuration, deletion, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.commands import (
    AddPartitions,
    AlterTopicConfig,
    CommitOffsets,
    CreateTopic,
    DeleteTopic,
    Done,
    GroupCommits,
    PartitionId,
    StoredOffset,
)
from raftmq.metadata.image import (
    DELETED_TOPICS_MAX,
    ChangeKind,
    MetadataImage,
    PartitionState,
    SlotState,
    TopicState,
    TouchedKey,
    slot_of,
)
from raftmq.metadata.snapshot import decode_image, encode_image
from tests.unit.metadata.states import (
    ORDERS,
    VERSION,
    after,
    answer,
    apply_next,
    cluster,
    create,
    refusal,
    topic_id_of,
)

FIRST = PartitionId(ORDERS, 0)


def with_partition(image: MetadataImage, **fields: object) -> MetadataImage:
    """The image with some fields of the first partition put to what a test needs."""
    draft = Draft(image, image.version + 1)
    draft.put_partition(FIRST, replace(image.partitions[FIRST], **fields))
    return draft.finish()


def alter(expected_epoch: int = -1, **changes: str | None) -> AlterTopicConfig:
    dotted = {key.replace("_", "."): value for key, value in changes.items()}
    return AlterTopicConfig(ORDERS, dotted, expected_epoch)


# Creation


def test_a_new_topic_is_found_by_id_and_by_name() -> None:
    """Creating a topic makes its partitions, led by the first replica, all in sync."""
    image = after(cluster(), create((0, 1, 2), (1, 2, 0), retention_ms="1000"))
    topic = TopicState(ORDERS, "orders", 2, {"retention.ms": "1000"}, config_epoch=VERSION + 1)
    assert image.topic_named("orders") == topic
    assert image.partitions[FIRST] == PartitionState((0, 1, 2), (0, 1, 2), leader=0)
    assert image.partitions[PartitionId(ORDERS, 1)].leader == 1
    assert set(image.hosted_by(2)) == {FIRST, PartitionId(ORDERS, 1)}
    assert image.changes == (
        TouchedKey(ChangeKind.TOPIC, ORDERS),
        TouchedKey(ChangeKind.PARTITION, FIRST),
        TouchedKey(ChangeKind.PARTITION, PartitionId(ORDERS, 1)),
    )


def test_only_active_brokers_are_in_sync_at_first() -> None:
    """The preferred leader is fenced and another replica stops: the third leads alone."""
    image = after(cluster(fenced={0}, stopping={1}), create((0, 1, 2)))
    assert image.partitions[FIRST] == PartitionState((0, 1, 2), (2,), leader=2)


def test_a_retried_creation_is_done_already() -> None:
    """The same id, name and replicas: nothing is changed, nothing is refused."""
    image = after(cluster(), create((0, 1), (1, 2)))
    again, result = apply_next(image, create((0, 1), (1, 2)))
    assert (result, again.changes, again.topics) == (Done(), (), image.topics)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (create(topic_id=topic_id_of(2)), ErrorCode.TOPIC_ALREADY_EXISTS),
        (create((0, 1)), ErrorCode.TOPIC_ALREADY_EXISTS),
        (create((0, 1, 2), (0, 1, 2)), ErrorCode.TOPIC_ALREADY_EXISTS),
        (create(name="other"), ErrorCode.INCONSISTENT_TOPIC_ID),
    ],
    ids=["name", "replicas", "partitions", "id"],
)
def test_what_exists_is_not_made_again(command: CreateTopic, code: ErrorCode) -> None:
    """A name in use, other replicas under the same id, or an id in use: refused."""
    assert refusal(after(cluster(), create()), command).code is code


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "x" * 201])
def test_a_bad_name_is_refused(name: str) -> None:
    """A name becomes the name of a folder: nothing but letters, digits, dot, underscore, minus."""
    found = refusal(cluster(), create(name=name))
    assert found.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert f"of {len(name)} characters" in found.message


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 200])
def test_a_good_name_is_taken(name: str) -> None:
    """Everything that the rule allows, up to 200 characters."""
    assert answer(cluster(), create(name=name)) == Done()


def test_an_id_has_16_bytes() -> None:
    """An id of another length would not fit where a UUID is expected."""
    assert refusal(cluster(), create(topic_id=b"short")).code is ErrorCode.INVALID_REQUEST


def test_all_problems_of_a_configuration_are_told() -> None:
    """Two bad keys: the answer names both."""
    found = refusal(cluster(), create(retention_ms="soon", min_insync_replica="2"))
    assert found.code is ErrorCode.INVALID_CONFIG
    assert "retention.ms = 'soon'" in found.message
    assert "did you mean 'min.insync.replicas'" in found.message


def test_a_configuration_has_a_sensible_size() -> None:
    """Ten thousand slips are not looked up one by one on every node."""
    command = CreateTopic(ORDERS, "orders", ((0,),), {f"slip {n}": "" for n in range(10_000)})
    found = refusal(cluster(), command)
    assert found.code is ErrorCode.INVALID_CONFIG
    assert "at most 10000" in found.message


@pytest.mark.parametrize(
    ("assignments", "code", "part"),
    [
        ((), ErrorCode.INVALID_PARTITIONS, "no partitions"),
        (((0,),) * 10_001, ErrorCode.INVALID_PARTITIONS, "at most 10000"),
        (((0,),) * 1_001, ErrorCode.INVALID_PARTITIONS, "at most 1000, add the others"),
        ((tuple(range(17)),), ErrorCode.INVALID_REPLICATION_FACTOR, "at most 16"),
        (((0,), ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partition 1: no replicas"),
        (((0, 1, 0),), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (((0, 9),), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9 is not registered"),
        (((2,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "none of the brokers (2,) is active"),
    ],
    ids=["none", "too many", "too many at once", "too wide", "empty", "twice", "unknown", "fenced"],
)
def test_a_bad_assignment_is_refused(
    assignments: tuple[tuple[int, ...], ...], code: ErrorCode, part: str
) -> None:
    """Each bound of an assignment, for a new topic and for new partitions alike."""
    image = cluster(fenced={2})
    found = refusal(image, CreateTopic(ORDERS, "orders", assignments))
    assert found.code is code
    assert part in found.message
    image = after(image, create((0, 1)))
    assert refusal(image, AddPartitions(ORDERS, 1, assignments)).code is code


# Growth


def test_partitions_are_added_at_the_end() -> None:
    """Old partitions stay as they are; the new ones have the next numbers."""
    before = after(cluster(), create((0, 1, 2)))
    image = after(before, AddPartitions(ORDERS, 1, ((1, 2), (2, 0))))
    assert image.topics[ORDERS].partition_count == 3
    assert image.partitions[PartitionId(ORDERS, 2)] == PartitionState((2, 0), (2, 0), leader=2)
    assert image.partitions[FIRST] is before.partitions[FIRST]
    assert image.topics[ORDERS].config_epoch == before.topics[ORDERS].config_epoch


def test_partitions_are_added_once() -> None:
    """A retry finds what it made; another command that expects the old count is refused."""
    image = after(cluster(), create((0, 1, 2)), AddPartitions(ORDERS, 1, ((1, 2),)))
    assert apply_next(image, AddPartitions(ORDERS, 1, ((1, 2),)))[1] == Done()
    for command in (
        AddPartitions(ORDERS, 1, ((2, 1),)),
        AddPartitions(ORDERS, 1, ()),
        AddPartitions(ORDERS, 3, ((1, 2),)),
        AddPartitions(ORDERS, -1, ((1, 2), (1, 2), (1, 2))),
    ):
        assert refusal(image, command).code is ErrorCode.INVALID_UPDATE_VERSION


def test_a_topic_does_not_grow_over_its_bound() -> None:
    """The bound counts the partitions that are there."""
    image = after(cluster(), create((0,)))
    command = AddPartitions(ORDERS, 1, ((0,),) * 10_000)
    assert refusal(image, command).code is ErrorCode.INVALID_PARTITIONS


# Configuration


def test_one_key_is_set_another_removed() -> None:
    """What is not named stays; None brings the default back; the epoch is the version."""
    image = after(cluster(), create(retention_ms="1000", segment_ms="5"))
    image = after(image, alter(retention_ms=None, durability="page_cache"))
    topic = image.topics[ORDERS]
    assert topic.configs == {"durability": "page_cache", "segment.ms": "5"}
    assert topic.config_epoch == image.version
    assert image.changes == (TouchedKey(ChangeKind.TOPIC, ORDERS),)


def test_two_editors_do_not_overwrite_each_other() -> None:
    """Both read epoch e; the second one that writes with it is refused."""
    image = after(cluster(), create())
    epoch = image.topics[ORDERS].config_epoch
    image = after(image, alter(epoch, retention_ms="1"))
    found = refusal(image, alter(epoch, retention_ms="2"))
    assert found.code is ErrorCode.INVALID_UPDATE_VERSION
    assert answer(image, alter(retention_ms="2")) == Done()


def test_a_change_to_what_is_there_changes_nothing() -> None:
    """Equal configuration: nobody is woken for it."""
    image = after(cluster(), create(retention_ms="1000"))
    image, result = apply_next(image, alter(retention_ms="1000", segment_ms=None))
    assert (result, image.changes) == (Done(), ())


@pytest.mark.parametrize("value", ["1000", None])
def test_a_slip_in_a_key_is_refused_even_to_remove_it(value: str | None) -> None:
    """Removing a key that cannot be there would be a command without effect."""
    found = refusal(after(cluster(), create()), alter(retention_sm=value))
    assert found.code is ErrorCode.INVALID_CONFIG
    assert "did you mean 'retention.ms'" in found.message


def test_a_lower_min_isr_leaves_eligible_replicas_behind() -> None:
    """From now on one replica commits alone: whoever left before lacks what follows."""
    image = after(cluster(), create())
    image = with_partition(image, isr=(0,), eligible=(1, 2), partition_epoch=7)
    image = after(image, alter(min_insync_replicas="1"))
    state = image.partitions[FIRST]
    assert (state.isr, state.eligible, state.partition_epoch) == ((0,), (), 8)
    assert TouchedKey(ChangeKind.PARTITION, FIRST) in image.changes


def test_a_higher_min_isr_is_seen_by_the_leader_before_it_changes_the_isr() -> None:
    """Nothing changes in the partition but its epoch, which makes old proposals fail."""
    before = after(cluster(), create(min_insync_replicas="1"))
    image = after(before, alter(min_insync_replicas="2"))
    old = before.partitions[FIRST]
    assert image.partitions[FIRST] == replace(old, partition_epoch=old.partition_epoch + 1)


def test_a_min_isr_above_the_replicas_makes_no_difference() -> None:
    """With two replicas, a minimum of 2 or of 5 is the same: the partition is left alone."""
    before = after(cluster(), create((0, 1)))
    image = after(before, alter(min_insync_replicas="5"))
    assert image.partitions is before.partitions


# Deletion


def test_nothing_is_left_of_a_deleted_topic() -> None:
    """Topic, name, partitions and what brokers host are gone; committed offsets stay."""
    start = cluster()
    slots = list(start.slots)
    slots[slot_of("g")] = SlotState(0, 1)
    commits = GroupCommits("g", (StoredOffset(ORDERS, 0, 5),))
    image = after(
        start._replace(slots=tuple(slots)),
        create((0, 1, 2), (0, 1, 2)),
        CommitOffsets(slot_of("g"), 1, (commits,)),
        DeleteTopic(ORDERS),
    )
    assert image.topics == start.topics
    assert image.topic_ids == start.topic_ids
    assert image.partitions == start.partitions
    assert image.hosted == start.hosted
    assert len(image.changes) == 3
    assert image.offsets["g"][FIRST].offset == 5


def test_deleted_topics_are_remembered() -> None:
    """For brokers that were down: so many, the last ones, and none that was made again."""
    image = after(cluster(), create((0,)), DeleteTopic(ORDERS))
    assert image.deleted_topics == (ORDERS,)
    assert decode_image(encode_image(image)) == image._replace(changes=())
    assert after(image, create((0,))).deleted_topics == ()
    others = tuple(map(topic_id_of, range(2, DELETED_TOPICS_MAX + 2)))
    many = image._replace(deleted_topics=others)
    assert after(many, create((0,)), DeleteTopic(ORDERS)).deleted_topics == (*others[1:], ORDERS)


def test_a_topic_of_the_same_name_is_another_one() -> None:
    """Deleted and made again under a new id: its epochs start anew, its id is new."""
    image = after(cluster(), create(), DeleteTopic(ORDERS), create(topic_id=topic_id_of(2)))
    assert image.topic_ids["orders"] == topic_id_of(2)


@pytest.mark.parametrize(
    "command",
    [DeleteTopic(ORDERS), AddPartitions(ORDERS, 1, ((0,),)), alter(retention_ms="1")],
    ids=["delete", "grow", "configure"],
)
def test_a_topic_that_is_not_there_is_refused(
    command: DeleteTopic | AddPartitions | AlterTopicConfig,
) -> None:
    """Commands name a topic by id: one that was deleted is never mistaken for its successor."""
    image = after(cluster(), create(topic_id=topic_id_of(2)))
    found = refusal(image, command)
    assert found.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert ORDERS.hex() in found.message


def test_a_key_waits_for_the_feature_level_that_knows_it() -> None:
    """An older node would take it for a slip, and refuse what the others accept."""
    image = cluster()._replace(feature_level=0)
    problem = refusal(image, create(retention_ms="1"))
    assert problem.code == ErrorCode.INVALID_CONFIG
    assert "retention.ms needs feature level 1, the cluster is at 0" in problem.message


@pytest.mark.parametrize("value", ["1_000", " 5", "+5", "\u0665", "9" * 20, "9" * 5000])
def test_numbers_are_digits(value: str) -> None:
    """What Python takes for a number, another version of it may not."""
    assert refusal(cluster(), create(retention_ms=value)).code == ErrorCode.INVALID_CONFIG
