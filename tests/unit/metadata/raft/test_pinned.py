"""PySyncObj is the one that was read, or nothing starts; its two globals do what they did."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pysyncobj.syncobj as syncobj
import pytest
from pysyncobj import SyncObj
from pysyncobj.journal import MemoryJournal

from raftmq.metadata.raft.engine import pinned
from raftmq.metadata.raft.engine.pinned import EnginePeer, UnsupportedPySyncObj
from tests.simulation.raft.lockstep import quorum

SOURCES = Path(syncobj.__file__).parent


def test_another_version_is_refused() -> None:
    """The error names both versions and the command that helps."""
    with pytest.raises(
        UnsupportedPySyncObj, match=r"0\.3\.18 is installed.*pip install .*0\.3\.17"
    ):
        pinned.check_version("0.3.18")


def test_missing_methods_and_globals_are_named() -> None:
    """All that is missing is told together, of the class and of the module."""
    module = SimpleNamespace(createJournal=None)
    with pytest.raises(UnsupportedPySyncObj, match="has no monotonicTime:"):
        pinned.check_names(SyncObj, module)
    with pytest.raises(UnsupportedPySyncObj, match="reinstall") as error:
        pinned.check_names(object, syncobj)
    for name in ("_SyncObj__applyLogEntries", "_SyncObj__setCurrentTerm", "doTick"):
        assert name in str(error.value)


def test_missing_fields_are_named() -> None:
    """What only an instance has is looked for on an instance."""
    names = dict.fromkeys(f"_SyncObj__{name}" for name in pinned._FIELDS)
    pinned.check_fields(SimpleNamespace(**names))
    del names["_SyncObj__raftMatchIndex"]
    with pytest.raises(UnsupportedPySyncObj, match="raftMatchIndex") as error:
        pinned.check_fields(SimpleNamespace(**names))
    assert "raftNextIndex" not in str(error.value)


def test_changed_sources_are_named(tmp_path: Path) -> None:
    """One byte more in one file of the right version, and that file is told."""
    for name in ("syncobj.py", "node.py", "transport.py", "config.py"):
        shutil.copy(SOURCES / name, tmp_path)
    pinned.check_sources(tmp_path)
    with (tmp_path / "node.py").open("a") as file:
        file.write("\n")
    with pytest.raises(UnsupportedPySyncObj, match=r"node\.py of pysyncobj") as error:
        pinned.check_sources(tmp_path)
    assert "syncobj.py" not in str(error.value)


def test_a_ready_journal_may_stand_for_its_path() -> None:
    """Stock uses of the replaced function go on as before."""
    journal = object()
    assert syncobj.createJournal(journal) is journal
    assert isinstance(syncobj.createJournal(None), MemoryJournal)


def test_each_thread_has_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the node that runs is seen in its thread; elsewhere it is the real one."""
    monkeypatch.setattr(pinned._running, "clock", lambda: 42.0, raising=False)
    seen: list[float] = []
    before = time.monotonic()
    thread = threading.Thread(target=lambda: seen.append(syncobj.monotonicTime()))
    thread.start()
    thread.join()
    assert syncobj.monotonicTime() == 42.0
    assert seen[0] >= before


def test_peers_are_ordered_alike_in_every_process() -> None:
    """The hash of a peer is that of its number, so sets of peers have one order."""
    assert {EnginePeer(2), EnginePeer(2)} == {EnginePeer(2)}
    assert hash(EnginePeer(7)) == hash(7)
    assert str(EnginePeer(7)) == "voter 7"


def test_what_must_not_happen_is_an_error() -> None:
    """PySyncObj neither loads a dump nor applies a command of its own."""
    node = quorum(1, 1)[1].node
    with pytest.raises(AssertionError, match="snapshots"):
        node._SyncObj__loadDumpFile(clearJournal=True)
    with pytest.raises(AssertionError, match="commands"):
        node._SyncObj__doApplyCommand(b"\x00")


def test_a_term_never_falls() -> None:
    """Stepping down in the same term keeps the vote; to a lower one it is a broken invariant."""
    voter = quorum(1)[1]
    voted_for = voter.journal.getVotedForNodeId()
    voter.node.step_down(voter.node.term)
    assert (voter.node.is_leader, voter.node.leader_id) == (False, None)
    assert voter.journal.getVotedForNodeId() == voted_for == 1
    with pytest.raises(AssertionError, match="back to"):
        voter.node.step_down(0)
