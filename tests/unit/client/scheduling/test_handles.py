"""Handles of scheduled records: as a text that people type, and back."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.scheduling.handles import ScheduleHandle
from raftmq.errors import InvalidRequest
from raftmq.wire.bodies import ID_MAX, NUMBER_MAX

ID = "00ff" * 8


@given(st.binary(min_size=16, max_size=16), st.integers(0, ID_MAX), st.integers(0, NUMBER_MAX))
def test_there_and_back(topic_id: bytes, partition: int, offset: int) -> None:
    """Whatever it names (A12.3)."""
    handle = ScheduleHandle(topic_id, partition, offset)
    assert ScheduleHandle.parse(str(handle)) == handle
    assert ScheduleHandle.parse(str(handle).upper()) == handle
    assert pickle.loads(pickle.dumps(handle)) == handle


def test_what_it_looks_like() -> None:
    assert str(ScheduleHandle(bytes.fromhex(ID), 3, 1042)) == f"{ID}:3:1042"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders:3:1042",
        f"{ID}:3",
        f"{ID}:3:1042 ",
        f" {ID}:3:1042",
        f"{ID}:-1:1042",
        f"{ID}:3:+1",
        f"{ID}:3:٣",
        f"{ID}0:3:1",
        f"{ID}:{ID_MAX + 1}:1",
        f"{ID}:3:{NUMBER_MAX + 1}",
        f"{ID}:3:1042\n",
    ],
)
def test_texts_that_are_none(text: str) -> None:
    """A slip never names another record."""
    with pytest.raises(InvalidRequest, match="is no handle of a scheduled record"):
        ScheduleHandle.parse(text)


def test_what_is_no_text() -> None:
    with pytest.raises(InvalidRequest, match="a handle is a NoneType, expected the text of one"):
        ScheduleHandle.parse(None)  # type: ignore[arg-type]
