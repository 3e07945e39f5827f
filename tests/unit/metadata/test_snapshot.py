"""The image as slices of bytes, and back."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from raftmq.errors import CorruptJournal
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.commands import GroupMemberRecord, PartitionId
from raftmq.metadata.image import (
    EMPTY_IMAGE,
    CommittedOffset,
    GroupState,
    MetadataImage,
    PartitionState,
    PlannedMove,
    TopicState,
)
from raftmq.metadata.image_format import (
    FORMAT_VERSION,
    SECTION_BYTES_AIM,
    SLICE_BYTES_MAX,
    PlansSection,
)
from raftmq.metadata.snapshot import decode_image, encode_image
from tests.unit.metadata.random_images import random_image

TOPIC = b"t" * 16


def image_of_one_topic(partition_count: int = 3) -> MetadataImage:
    draft = Draft(EMPTY_IMAGE, 7)
    draft.put_topic(TopicState(TOPIC, "orders", partition_count, {"retention.ms": "1"}))
    for number in range(partition_count):
        state = PartitionState((1, 2, 3), (1, 2, 3), leader=1, leader_epoch=number)
        draft.put_partition(PartitionId(TOPIC, number), state)
    return draft.finish()


def some_image(seed: int) -> MetadataImage:
    random = Random(seed)
    image = random_image(random)
    for _ in range(3):
        image = random_image(random, base=image)
    return image


def sections(image: MetadataImage) -> list[Any]:
    """What is in the slices; none of them is so long that it was cut."""
    slices = list(encode_image(image))
    assert all(piece[:1] == b"\0" for piece in slices)
    return [msgspec.msgpack.decode(piece[1:]) for piece in slices]


def slices_of(parts: list[Any]) -> list[bytes]:
    return [b"\0" + msgspec.msgpack.encode(part) for part in parts]


# Round trips


@given(st.integers(0, 1 << 32))
def test_what_comes_back_is_what_went_in(seed: int) -> None:
    """Any image, encoded and decoded, is equal to itself, with hosted and topic_ids built anew.

    A6.5.
    """
    image = some_image(seed)
    assert decode_image(encode_image(image)) == image._replace(changes=())


def test_an_empty_image() -> None:
    """A quorum that has no metadata yet has a snapshot, too."""
    slices = list(encode_image(EMPTY_IMAGE))
    assert len(slices) == 2
    assert decode_image(slices) == EMPTY_IMAGE


def test_slices_are_small_however_large_the_rows() -> None:
    """A group with a megabyte of members is cut into slices that keep the limit."""
    members = tuple(GroupMemberRecord(str(number), assignment=bytes(9000)) for number in range(120))
    image = EMPTY_IMAGE._replace(groups=Map(g=GroupState(1, members=members)))
    slices = list(encode_image(image))
    assert len(slices) > 16
    assert max(map(len, slices)) == SLICE_BYTES_MAX
    assert decode_image(slices) == image


def test_many_rows_make_many_slices() -> None:
    """A slice ends soon after it is long enough, so that the work of each step is bounded."""
    offsets = {PartitionId(TOPIC, n): CommittedOffset(n << 32) for n in range(9000)}
    image = EMPTY_IMAGE._replace(offsets=Map({"g": Map(offsets.items())}))
    slices = list(encode_image(image))
    assert len(slices) > 4
    assert max(map(len, slices)) < 2 * SECTION_BYTES_AIM
    assert decode_image(slices) == image


def test_slices_are_made_as_they_are_asked_for() -> None:
    """The image after the picture was taken does not show in it, nor is it encoded ahead."""
    image = image_of_one_topic()
    slices = encode_image(image)
    first = next(slices)
    assert decode_image([first, *slices]) == image._replace(changes=())


def test_equal_replicas_and_ids_are_one_object() -> None:
    """A large image repeats few sets of replicas and names each partition in many places."""
    image = image_of_one_topic()
    key = PartitionId(TOPIC, 1)
    image = image._replace(offsets=Map({"g": Map([(key, CommittedOffset(5))])}))
    found = decode_image(encode_image(image))
    state, other = found.partitions[key], found.partitions[PartitionId(TOPIC, 2)]
    assert state.replicas is state.isr is other.replicas
    stored = next(iter(found.offsets["g"]))
    assert any(stored is partition for partition in found.partitions)
    assert any(stored is partition for partition in found.hosted[1])
    assert all(topic_id is found.topic_ids["orders"] for topic_id, _ in found.partitions)


# Other versions


def test_fields_of_a_later_version_are_ignored() -> None:
    """A newer node adds fields at the end of the header, a topic and a partition."""
    image = image_of_one_topic()
    parts = sections(image)
    header, topics, partitions = parts[0], parts[1][1][0], parts[2][1][0][2]
    for row in (header, topics, *partitions):
        row.append({"later": [1]})
    assert decode_image(slices_of(parts)) == image._replace(changes=())


def test_fields_of_an_earlier_version_are_enough() -> None:
    """A snapshot of before partitions had a start of their own: they begin at 0."""
    image = image_of_one_topic()
    parts = sections(image)
    for row in parts[2][1][0][2]:
        assert row.pop() == 0
    assert decode_image(slices_of(parts)) == image._replace(changes=())


def test_without_plans_there_is_nothing_that_an_earlier_version_does_not_know() -> None:
    """A node that knows no moves reads what one that does has written, below their level.

    A10.2.
    """
    image = image_of_one_topic()
    tag = PlansSection.__struct_config__.tag
    assert tag not in [part[0] for part in sections(image)[1:]]
    header = sections(image)[0]
    assert header.pop() == 0  # the count of plans, which stands last
    assert decode_image(slices_of([header, *sections(image)[1:]])) == image._replace(changes=())
    planned = image._replace(moves=Map({PartitionId(TOPIC, 1): PlannedMove((4,), 7)}))
    assert tag in [part[0] for part in sections(planned)[1:]]
    assert decode_image(encode_image(planned)) == planned._replace(changes=())


def test_a_newer_format_is_refused_by_name() -> None:
    """Whatever follows the number of a newer format is not looked at."""
    with pytest.raises(CorruptJournal, match=f"format {FORMAT_VERSION + 1} is newer"):
        decode_image(slices_of([[FORMAT_VERSION + 1, "something", "else"]]))


# Damage


def test_a_missing_section_is_seen() -> None:
    """Each section but the header carries rows that the counts know of."""
    parts = sections(some_image(3))
    for left_out in range(1, len(parts)):
        with pytest.raises(CorruptJournal):
            decode_image(slices_of(parts[:left_out] + parts[left_out + 1 :]))


def test_all_wrong_counts_are_told_together() -> None:
    """The message says what there should be."""
    parts = sections(image_of_one_topic())
    parts[0][5:7] = [4, 9]
    message = "0 brokers instead of 4, 1 topics instead of 9"
    with pytest.raises(CorruptJournal, match=message):
        decode_image(slices_of(parts))


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([], "header of 0 bytes does not decode"),
        ([b""], "slice 0 starts with b''"),
        ([b"\x02abc"], "slice 0 starts with"),
        ([b"\x01abc"], "a section of 1 slices has no last one"),
        ([b"\0" + b"\x91" * 100_000], "header of 100000 bytes does not decode"),
        (slices_of([[1, 2, 3, 4, [], 0, 0, 0, 0, 0, 0]]), "0 coordinator slots instead of 64"),
    ],
)  # fmt: skip
def test_a_start_that_is_none(slices: list[bytes], message: str) -> None:
    """Nothing that can stand where a header should raises anything but CorruptJournal."""
    with pytest.raises(CorruptJournal, match=message):
        decode_image(slices)


def test_sections_that_do_not_belong() -> None:
    """Unknown sections, text that is none, a second end, partitions without a topic or twice."""
    header, topics, partitions, end = sections(image_of_one_topic())
    bad_text = b"\0" + msgspec.msgpack.encode(topics).replace(b"orders", b"order\xff")
    cases = [
        ([header, [99, []], end], "section 1 of .* does not decode"),
        ([header, topics, partitions, end, end], "section 4 stands behind the end"),
        ([header, topics, partitions], "the end is missing"),
        ([header, partitions, topics, end], f"partitions of topic {TOPIC.hex()}"),
        ([header, topics, [10, [[TOPIC, 1, [[4], 7]]]], end], f"a move of {TOPIC.hex()} 1, which"),
        ([header, topics, partitions, partitions, end], "partition 0 of topic orders"),
        ([header, topics, [3, [[TOPIC, 1, partitions[1][0][2]]]], end], "has 3 partitions, not 1"),
    ]
    for parts, message in cases:
        with pytest.raises(CorruptJournal, match=message):
            decode_image(slices_of(parts))
    with pytest.raises(CorruptJournal, match=r"section 1 of .* does not decode"):
        decode_image([*slices_of([header]), bad_text])


@given(st.integers(0, 1 << 16), st.data())
def test_flipped_bytes_are_refused_or_decode(seed: int, data: st.DataObject) -> None:
    """Whatever one wrong byte does, it raises nothing but CorruptJournal."""
    slices = list(encode_image(random_image(Random(seed), steps=5)))
    number = data.draw(st.integers(0, len(slices) - 1))
    damaged = bytearray(slices[number])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    slices[number] = bytes(damaged)
    try:
        assert isinstance(decode_image(slices), MetadataImage)
    except CorruptJournal as error:
        assert str(error).startswith("metadata image of a snapshot: ")  # noqa: PT017
