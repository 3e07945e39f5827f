"""Subscriptions and assignments as bytes: there and back, strict, bounded."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.group.assignors.assignor import Subscribed
from raftmq.client.group.planning import (
    Assigned,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from raftmq.errors import RemoteProtocolError
from raftmq.wire.bodies import ID_MAX
from raftmq.wire.messages.groups import (
    SUBSCRIPTION_BYTES_MAX,
    Interest,
    interest_in,
    partitions_in,
    steps_of,
)

pack = msgspec.msgpack.encode
KEYS = st.frozensets(st.tuples(st.sampled_from("abc"), st.integers(0, ID_MAX)), max_size=20)


@given(owned=KEYS, generation=st.integers(-1, ID_MAX), user_data=st.binary(max_size=9))
def test_subscriptions_come_back(
    owned: frozenset[tuple[str, int]], generation: int, user_data: bytes
) -> None:
    """Whatever a member owns, wherever it runs."""
    data = encode_subscription(
        ["b", "a"],
        owned,
        generation=generation,
        is_holding=True,
        user_data=user_data,
        rack="r1",
    )
    found = decode_subscription(data, member_id="m", instance_id="i")
    topics = frozenset("ab")
    assert found == Subscribed("m", topics, owned, generation, True, "i", user_data, "r1")


@given(partitions=KEYS, counts=st.dictionaries(st.sampled_from("abc"), st.integers(0, ID_MAX)))
def test_assignments_come_back(
    partitions: frozenset[tuple[str, int]], counts: dict[str, int]
) -> None:
    """A leader's own says with which counts it has planned."""
    assert decode_assignment(encode_assignment(partitions, counts)) == (partitions, counts, False)
    assert decode_assignment(encode_assignment(partitions, is_awaited=True)).is_awaited


def test_no_bytes_are_no_partitions() -> None:
    """A coordinator has nothing else for a member that the leader did not know."""
    assert decode_assignment(b"") == Assigned(frozenset(), {})


def test_the_same_content_gives_the_same_bytes() -> None:
    """A coordinator compares them: a rebalance for nothing would be the price of another order."""
    one = encode_subscription(["b", "a", "a"], [("b", 1), ("a", 2), ("a", 0)])
    other = encode_subscription(["a", "b"], [("a", 0), ("a", 2), ("b", 1)])
    assert one == other


def test_steps() -> None:
    """From one partition to the next, beginning at -1."""
    steps = steps_of([("a", 7), ("a", 0), ("b", 3), ("a", 1)])
    assert steps == {"a": (1, 1, 6), "b": (4,)}
    assert partitions_in(steps, what="x") == {("a", 0), ("a", 1), ("a", 7), ("b", 3)}


def test_many_partitions_fit() -> None:
    """Half of the partitions of a topic with 100,000, of which each takes a byte."""
    owned = [("orders", number) for number in range(0, 100_000, 2)]
    assert len(encode_subscription(["orders"], owned)) <= SUBSCRIPTION_BYTES_MAX


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x93\x01", "truncated"),
        (b"\xff", "Expected `array`"),
        (pack([2, "whatever"]), "format 2, this version of raftmq knows 1: use one version"),
        (pack(["1", {}, {}]), "Expected `int`"),
        (pack([1, {"a": [0]}, {}]), "Expected `int` >= 1"),
        (pack([1, {"a": []}, {}]), "length >= 1"),
        (pack([1, {"": [1]}, {}]), "length >= 1"),
        (pack([1, {"a": [ID_MAX, 2]}, {}]), f"a-{ID_MAX + 1} is beyond a-{ID_MAX}"),
        (pack([1, {"a": [1]}, {"a": -1}]), "Expected `int` >= 0"),
        (pack([1, {"a": [1]}]), "at least length 3"),
        (pack([1, {"a": [1]}, {}]) + b"\0", "trailing"),
    ],
)
def test_what_is_no_assignment(data: bytes, problem: str) -> None:
    """Bytes of another program, of another version, or with more than there can be."""
    with pytest.raises(RemoteProtocolError, match="assignment: ") as caught:
        decode_assignment(data)
    assert problem in str(caught.value)


def test_what_is_no_subscription_names_the_member() -> None:
    """The leader's program has to know whom to look for."""
    with pytest.raises(RemoteProtocolError, match="subscription of member 'm7': "):
        decode_subscription(b"", member_id="m7")


def test_fields_at_the_end_are_passed_over() -> None:
    """A newer version has added some."""
    data = pack([1, {"a": [1]}, {"a": 2}, False, "new"])
    assert decode_assignment(data) == Assigned(frozenset([("a", 0)]), {"a": 2})


def test_the_interest_of_a_subscription() -> None:
    """It stays while the claims change; bytes of other programs have none."""
    first = encode_subscription(["b", "a"], user_data=b"u", rack="r")
    later = encode_subscription(["a", "b"], [("a", 0)], generation=3, user_data=b"u", rack="r")
    assert first != later
    assert interest_in(first) == interest_in(later) == Interest(1, ("a", "b"), b"u", "r")
    assert (
        interest_in(b"") is interest_in(b"\x00\x01") is interest_in(pack([2, [], b"", ""])) is None
    )
