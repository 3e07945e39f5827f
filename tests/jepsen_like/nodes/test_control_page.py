"""The page that a node is governed by: both sides see one thing at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.control_page import PAGE_BYTES, ControlPage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "page"


@pytest.fixture
def harness(path: Path) -> ControlPage:
    return ControlPage.create(path)


@pytest.fixture
def node(harness: ControlPage, path: Path) -> ControlPage:
    assert harness.syncs == 0
    return ControlPage.open(path)


def test_a_new_page_demands_nothing(harness: ControlPage, node: ControlPage) -> None:
    """What a node finds that nobody breaks."""
    for page in (harness, node):
        assert (page.power_cuts, page.clock_offset_ms, page.kill_at_sync) == (0, 0, 0)
        assert (page.sync_delay_seconds, page.fail_syncs) == (0.0, False)
    assert not any(node.count_sync() for _ in range(10))


def test_changes_are_seen_at_once(harness: ControlPage, node: ControlPage) -> None:
    """The harness writes while the node runs."""
    harness.power_cuts, harness.clock_offset_ms = 3, -288_000
    harness.sync_delay_seconds, harness.fail_syncs = 0.25, True
    assert (node.power_cuts, node.clock_offset_ms) == (3, -288_000)
    assert (node.sync_delay_seconds, node.fail_syncs) == (0.25, True)


def test_the_countdown_begins_when_it_is_set(harness: ControlPage, node: ControlPage) -> None:
    """Some syncs are over before; the third from then on is the one, and no other."""
    node.count_sync()
    harness.kill_at_sync = 3
    assert [node.count_sync() for _ in range(2)] == [False, False]
    assert harness.kill_at_sync == 1
    assert node.count_sync()
    assert harness.kill_at_sync == 0
    assert harness.syncs == 4
    assert not node.count_sync()


def test_a_countdown_outlives_the_node(harness: ControlPage, node: ControlPage, path: Path) -> None:
    """The node is killed for another reason; its next life finds what is left."""
    harness.kill_at_sync = 2
    node.count_sync()
    assert ControlPage.open(path).count_sync()


def test_a_countdown_is_called_off(harness: ControlPage, node: ControlPage) -> None:
    """All that was demanded is over, but for what has happened."""
    harness.kill_at_sync, harness.fail_syncs, harness.sync_delay_seconds = 1, True, 1.0
    harness.power_cuts, harness.clock_offset_ms = 1, 1
    harness.calm()
    assert not node.count_sync()
    assert (node.fail_syncs, node.sync_delay_seconds, node.clock_offset_ms) == (False, 0.0, 0)
    assert node.power_cuts == 1


def test_another_file_is_no_page(path: Path) -> None:
    """A harness and a node of different versions, say."""
    path.write_bytes(bytes(PAGE_BYTES))
    with pytest.raises(AssertionError, match="no control page"):
        ControlPage.open(path)


def test_the_layout_is_little_endian(harness: ControlPage, path: Path) -> None:
    """One of 8 bytes each, wherever it is read."""
    harness.power_cuts = 0x0102
    assert path.read_bytes()[:8] == b"RQMPAGE1"
    assert path.read_bytes()[8:16] == bytes([2, 1, 0, 0, 0, 0, 0, 0])
