"""Lines of nodes that say that they lead become events, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nodes.logs.leads import LeadsReader, installed_of, leads_of
from jepsen_like.nodes.logs.node_event import NodeEvent

if TYPE_CHECKING:
    from pathlib import Path

START = "2026-01-01 00:00:00,000 INFO raftmq.partition.replica leads: log="
TOPIC = "all-t-1-" + "0f" * 16


def line(partition: int, epoch: int) -> bytes:
    return f"{START}{TOPIC}/Partition-{partition} epoch={epoch}\n".encode()


def leads(node_id: int, key: str, epoch: int) -> NodeEvent:
    return NodeEvent(node_id, "leads", {"key": key, "epoch": epoch})


def test_a_line_names_its_key_and_epoch() -> None:
    """The topic's name may hold dashes, too."""
    assert leads_of(2, line(7, 12)) == leads(2, "all-t-1-7", 12)


def test_other_lines_tell_nothing() -> None:
    """Whatever else a node says, and what its libraries may say of it."""
    for other in (b"-- node=1 life=2\n", b"\xff\xfe leads: log=x epoch=1\n", b" leads: log=\n"):
        assert leads_of(1, other) is None


def test_an_installed_snapshot_is_told() -> None:
    """Of the quorum: the only line of it that counts."""
    said = b"2026-01-01 00:00:00,000 INFO raftmq.raft node=1 index=7 event="
    assert installed_of(3, said + b"installed\n") == NodeEvent(3, "installed", {})
    assert installed_of(3, said + b"taken\n") is None


def test_what_other_nodes_said_before_is_not_told(tmp_path: Path) -> None:
    """A folder in which there was a run already: its leaders are none of this one's."""
    path = tmp_path / "n1.log"
    path.write_bytes(line(0, 7))
    reader = LeadsReader({1: path})
    with path.open("ab") as log:
        log.write(line(0, 1))
    assert reader.read_new() == [leads(1, "all-t-1-0", 1)]


def test_every_line_is_told_once(tmp_path: Path) -> None:
    """A reader comes back: it finds what is new, and a line that was cut off is told when whole."""
    paths = {1: tmp_path / "n1.log", 2: tmp_path / "n2.log"}
    reader = LeadsReader(paths)
    assert not reader.read_new()
    paths[1].write_bytes(b"-- life=1\n" + line(0, 1) + line(1, 2)[:-4])
    assert reader.read_new() == [leads(1, "all-t-1-0", 1)]
    with paths[1].open("ab") as file:
        file.write(line(1, 2)[-4:] + b"other\n")
    paths[2].write_bytes(line(0, 3))
    assert reader.read_new() == [leads(1, "all-t-1-1", 2), leads(2, "all-t-1-0", 3)]
    assert not reader.read_new()
