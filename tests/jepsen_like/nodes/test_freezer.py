"""The freezer: where it is found, and that what it stops can still be ended."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.freezer import (
    MOUNTS,
    PREFIX,
    Freezer,
    Hierarchy,
    choose_hierarchy,
    find_hierarchies,
    remove_leftovers,
    works,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD = "cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0"
OTHER = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0"
NEW = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0"


def test_hierarchies_are_found() -> None:
    """The old one comes first where both are, and other controllers are not it."""
    old = Hierarchy(Path("/sys/fs/cgroup/freezer"), 1)
    new = Hierarchy(Path("/sys/fs/cgroup/unified"), 2)
    assert find_hierarchies(f"{OTHER}\n{NEW}\n{OLD}\n") == [old, new]
    assert find_hierarchies(f"{OTHER}\n{NEW}") == [new]
    assert find_hierarchies(OTHER) == []


def test_orders_are_files_of_the_group(tmp_path: Path) -> None:
    """What is written to freeze and to thaw, and what is read of it."""
    for version, name, words in (
        (1, "freezer.state", ("FROZEN", "THAWED")),
        (2, "cgroup.freeze", ("1", "0")),
    ):
        hierarchy = Hierarchy(tmp_path, version)
        for frozen, word in zip((True, False), words, strict=True):
            hierarchy.order(tmp_path, frozen=frozen)
            assert (tmp_path / name).read_text() == word
    (tmp_path / "freezer.state").write_text("FREEZING\n")
    assert not Hierarchy(tmp_path, 1).is_frozen(tmp_path)
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert Hierarchy(tmp_path, 2).is_frozen(tmp_path)


def test_without_a_freezer_there_is_a_reason(tmp_path: Path) -> None:
    """A root that is none: the probe says so, and raises nothing."""
    assert "no groups" in works(Hierarchy(tmp_path / "missing", 1))


@pytest.fixture(params=[1, 2])
def hierarchy(request: pytest.FixtureRequest) -> Hierarchy:
    for found in find_hierarchies(MOUNTS.read_text()):
        if found.version == request.param:
            reason = works(found)
            if not reason:
                return found
            pytest.skip(reason)
    if choose_hierarchy()[0] is None:
        pytest.skip(choose_hierarchy()[1])
    pytest.skip(f"no cgroup v{request.param} here")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.powercut
def test_frozen_means_stopped(hierarchy: Hierarchy, sleeper: subprocess.Popen[bytes]) -> None:
    """A process is frozen and thawed, and its group goes with the freezer."""
    freezer = Freezer(hierarchy)
    freezer.admit("n1", sleeper.pid)
    freezer.freeze("n1")
    assert freezer.is_frozen("n1")
    freezer.thaw("n1")
    assert sleeper.poll() is None
    freezer.freeze("n1")
    freezer.close()
    assert sleeper.wait() == -9


@pytest.mark.powercut
def test_leftovers_die(hierarchy: Hierarchy, sleeper: subprocess.Popen[bytes]) -> None:
    """What a harness froze that is gone is killed by the next to come, and its groups go."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = hierarchy.root / f"{PREFIX}{gone.pid}-1"
    folder.mkdir()
    (folder / "n1").mkdir()
    (folder / "n1" / "cgroup.procs").write_text(str(sleeper.pid))
    hierarchy.order(folder / "n1", frozen=True)
    with suppress(OSError):
        remove_leftovers(hierarchy)
    assert sleeper.wait() == -9
    assert not folder.exists()
