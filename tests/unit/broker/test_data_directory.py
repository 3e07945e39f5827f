"""A directory that is not this node's is left as it is."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raftmq.broker.meta import OURS, check_directory, open_meta
from raftmq.disk.files import OsFiles
from raftmq.errors import InvalidConfig, StorageError
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles

DIRECTORY, OWNER = Path("/data"), ("cluster-a", 7)


def files_with(*names: str) -> SimulatedFiles:
    files = SimulatedFiles(Random(0))
    files.make_directory(DIRECTORY)
    for name in names:
        files.open(DIRECTORY / name, create=True)
    return files


def test_nothing_there_or_nothing_in_it() -> None:
    """It will be made, or be this node's from now on; a new file system has one folder."""
    check_directory(SimulatedFiles(Random(0)), DIRECTORY, OWNER)
    check_directory(files_with(), DIRECTORY, OWNER)
    check_directory(files_with("lost+found"), DIRECTORY, OWNER)


def test_what_a_start_left_that_was_killed() -> None:
    """Before it could say whose the directory is: it is tried again."""
    check_directory(files_with(*(OURS - {"meta.json"})), DIRECTORY, OWNER)


def test_a_directory_of_other_things() -> None:
    """They are named, the first of many; and the way out."""
    files = files_with("letters", "photos", "quorum", "tax", "will")
    with pytest.raises(InvalidConfig) as caught:
        check_directory(files, DIRECTORY, OWNER)
    assert str(caught.value) == (
        "node.directory = /data: is not empty, and no node's data directory (it has no meta.json):"
        " found letters, photos, tax and 1 more; name an empty directory, or one that does not"
        " exist yet"
    )
    assert files.names(DIRECTORY) == ["letters", "photos", "quorum", "tax", "will"]


@pytest.mark.parametrize("owner", [("cluster-b", 7), ("cluster-a", 8)])
async def test_the_directory_of_another_node(owner: tuple[str, int]) -> None:
    """Both are named; the mark of its clean shutdown stays where it is."""
    files = files_with("clean-shutdown")
    await open_meta(files, DIRECTORY, OWNER, random=Random(1), run_sync=run_inline)
    check_directory(files, DIRECTORY, OWNER)
    with pytest.raises(InvalidConfig) as caught:
        check_directory(files, DIRECTORY, owner)
    assert "node.directory = /data: belongs to node 7 of cluster 'cluster-a'" in str(caught.value)
    assert f"this is node {owner[1]} of {owner[0]!r}" in str(caught.value)
    assert "clean-shutdown" in files.names(DIRECTORY)


def test_an_identity_that_cannot_be_read() -> None:
    """Nobody guesses whose it is."""
    with pytest.raises(StorageError, match=r"/data/meta\.json is not readable"):
        check_directory(files_with("meta.json"), DIRECTORY, OWNER)


def test_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    """A slip of the finger, not a broken disk."""
    file = tmp_path / "node.toml"
    file.write_text("")
    with pytest.raises(InvalidConfig) as caught:
        check_directory(OsFiles(read_only=True), file, OWNER)
    told = "is no directory; name one, or a path where there is nothing yet"
    assert str(caught.value) == f"node.directory = {file}: {told}"
