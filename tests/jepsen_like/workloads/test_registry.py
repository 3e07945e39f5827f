"""Workloads by name."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from jepsen_like.history.recorder import Recorder
from jepsen_like.workloads.registry import NAMES, UnknownWorkload, make_workload

if TYPE_CHECKING:
    from jepsen_like.workloads.workload import Workload


def make(name: str) -> Workload:
    return make_workload(
        name,
        bootstrap="127.0.0.1:1",
        recorder=Recorder(lambda: 0.0),
        random=Random(1),
        node_count=3,
        processes=6,
        rate=60.0,
        acks=("all",),
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_there_is_has_its_name(name: str) -> None:
    """Making one connects to nobody."""
    workload = make(name)
    assert workload.name == name
    assert workload.view().leaders() == {}


def test_any_other_name_is_unknown() -> None:
    """A slip is told with what there is."""
    with pytest.raises(UnknownWorkload, match="unknown workload 'que': there is queue, meta"):
        make("que")
