"""Adapter of PySyncObj 0.3.17: the only module that uses its private methods and fields.

Owns the check that exactly this version is installed and has every private name used here, the
two module globals that have no argument (journal and clock), and `PinnedEngine`, which gives the
private members readable names and turns replaced methods into hooks. Decides nothing: the rules
are in `node` and the modules beside it. Decision 0011 says which parts of PySyncObj are used.
"""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pysyncobj
import pysyncobj.syncobj as syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.metadata.raft.journal.journal import Journal

PINNED_VERSION = "0.3.17"  # another version needs a new review, see decision 0011
# The files of that version that run here, as they were reviewed line by line (decision 0011).
_SHA256 = {
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
}
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2  # pysyncobj.syncobj._RAFT_STATE
_STATE_NAMES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}

_REPLACED_METHODS = (
    "_SyncObj__sendAppendEntries", "_SyncObj__applyLogEntries", "_SyncObj__tryLogCompaction",
    "_SyncObj__generateRaftTimeout", "_SyncObj__connectedToAnyone", "_SyncObj__doApplyCommand",
    "_SyncObj__loadDumpFile", "_checkCommandsToApply",
)  # fmt: skip
_CALLED_METHODS = (
    "_SyncObj__onMessageReceived", "_SyncObj__setState", "_SyncObj__setCurrentTerm",
    "_SyncObj__onNodeConnected", "_SyncObj__onNodeDisconnected", "doTick",
)  # fmt: skip
_FIELDS = (
    "raftState", "raftCurrentTerm", "votedForNodeId", "votesCount", "raftLeader",
    "raftElectionDeadline", "raftLog", "raftCommitIndex", "raftLastApplied", "raftNextIndex",
    "raftMatchIndex", "lastResponseTime", "noopIDx", "otherNodes", "connectedNodes",
    "newAppendEntriesTime", "needLoadDumpFile",
)  # fmt: skip


class UnsupportedPySyncObj(ImportError):
    """Not the version whose every line was read; raftmq would lose acknowledged metadata."""


def check_version(found: str) -> None:
    if found != PINNED_VERSION:
        raise UnsupportedPySyncObj(
            f"pysyncobj {found} is installed, raftmq needs exactly {PINNED_VERSION}"
            f" (it depends on its internals): pip install pysyncobj=={PINNED_VERSION}"
        )


def check_names(kind: type, module: object) -> None:
    """Every private method and module global that is replaced or called must be there."""
    methods = (*_REPLACED_METHODS, *_CALLED_METHODS)
    missing = [name for name in methods if not hasattr(kind, name)]
    missing += [n for n in ("createJournal", "monotonicTime") if not hasattr(module, n)]
    _refuse(missing)


def check_fields(engine: object) -> None:
    _refuse([name for name in _FIELDS if not hasattr(engine, f"_SyncObj__{name}")])


def _refuse(missing: list[str]) -> None:
    if missing:
        raise UnsupportedPySyncObj(
            f"pysyncobj says it is {VERSION}, but has no {', '.join(missing)}: it was changed;"
            f" reinstall it: pip install --force-reinstall pysyncobj=={PINNED_VERSION}"
        )


def check_sources(folder: Path) -> None:
    """Compare the files' hashes, as a patched package has the same version; no sources pass."""
    present = {name: folder / name for name in _SHA256 if (folder / name).exists()}
    changed = [
        name
        for name, path in present.items()
        if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256[name]
    ]
    if changed:
        raise UnsupportedPySyncObj(
            f"{', '.join(changed)} of pysyncobj {VERSION} in {folder} was changed; reinstall it:"
            f" pip install --force-reinstall pysyncobj=={PINNED_VERSION}"
        )


check_version(VERSION)
check_sources(Path(syncobj.__file__).parent)
check_names(SyncObj, syncobj)

_running = threading.local()
_stock_create_journal = syncobj.createJournal


def _create_journal(journal_file: object = None) -> object:
    """SyncObj has no argument for a journal: ours is passed where it expects a path."""
    # Another user of pysyncobj in this process.
    if journal_file is None or isinstance(journal_file, str):
        return _stock_create_journal(journal_file)
    return journal_file


def _now() -> float:
    """The clock of the node that this thread is running; stock SyncObj keeps the real clock."""
    clock: Callable[[], float] = getattr(_running, "clock", time.monotonic)
    return clock()


syncobj.createJournal = _create_journal
syncobj.monotonicTime = _now


class EnginePeer(Node):  # type: ignore[misc]  # pysyncobj has no types
    """A voter. Ids are ints: their hash, and so the order of sets, is equal in every process."""

    def __str__(self) -> str:
        return f"voter {self.id}"


class _EngineTransport(Transport):  # type: ignore[misc]
    """Passes the engine's messages to `send`; always ready, as it opens no socket."""

    def __init__(self, send: Callable[[int, dict[str, Any]], bool]) -> None:
        super().__init__(None, None, [])
        self._send = send

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: EnginePeer, message: dict[str, Any]) -> bool:
        return self._send(node.id, message)

    def destroy(self) -> None:
        pass


class _NoPoller:
    """The engine polls its sockets at the end of each tick; here it has none."""

    def poll(self, timeout: float) -> None:
        pass


class PinnedEngine(SyncObj):  # type: ignore[misc]
    """SyncObj with readable names; subclasses implement the hooks.

    Used of it: votes and terms, becoming leader, the commit rule, the consistency check of
    appended entries, the step down of a leader that hears no majority.
    """

    def __init__(
        self,
        node_id: int,
        peers: Iterable[int],
        journal: Journal,
        *,
        send: Callable[[int, dict[str, Any]], bool],
        clock: Callable[[], float],
        heartbeat_seconds: float,
        election_seconds: tuple[float, float],
        fallback_seconds: float,
    ) -> None:
        self._clock, self.journal = clock, journal
        self.peers = {peer: EnginePeer(peer) for peer in sorted(peers)}
        conf = SyncObjConf(
            autoTick=False, journalFile=journal, useFork=False, appendEntriesUseBatch=True,
            dynamicMembershipChange=False, appendEntriesPeriod=heartbeat_seconds,
            raftMinTimeout=election_seconds[0], raftMaxTimeout=election_seconds[1],
            leaderFallbackTimeout=fallback_seconds, connectionTimeout=election_seconds[1] * 2,
        )  # fmt: skip
        self._enter()
        transport = _EngineTransport(send)
        super().__init__(EnginePeer(node_id), list(self.peers.values()), conf, transport=transport)
        check_fields(self)
        self._poller = _NoPoller()
        self._SyncObj__needLoadDumpFile = False  # snapshots are ours

    def _enter(self) -> None:
        """Before every call into the engine: its clock is a module global, shared by all nodes."""
        _running.clock = self._clock

    # Hooks: decisions that the engine leaves to the subclass

    def may_campaign(self) -> bool:
        raise NotImplementedError

    def election_timeout(self) -> float:
        raise NotImplementedError

    def replicate(self) -> None:
        raise NotImplementedError

    def _SyncObj__connectedToAnyone(self) -> bool:
        return self.may_campaign()

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self.election_timeout()

    def _SyncObj__sendAppendEntries(self) -> None:
        # Of the engine's own method only the bookkeeping of the period is kept.
        self._SyncObj__newAppendEntriesTime = self._clock() + self.conf.appendEntriesPeriod
        self.replicate()

    # Methods of the engine that must do nothing

    def _SyncObj__applyLogEntries(self) -> bool:
        return False  # `node` applies, with a budget, what is committed and synced

    def _checkCommandsToApply(self) -> None:
        pass  # only a leader appends, and `node` does it

    def _SyncObj__tryLogCompaction(self) -> None:
        pass  # `snapshotter` does it

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise AssertionError("PySyncObj must not load snapshots")

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        raise AssertionError("PySyncObj must not apply commands")

    # Names of private fields

    @property
    def state(self) -> int:
        return int(self._SyncObj__raftState)

    @property
    def state_name(self) -> str:
        return _STATE_NAMES[self.state]

    @property
    def is_leader(self) -> bool:
        return self.state == LEADER

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def leader_id(self) -> int | None:
        leader = self._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    @property
    def commit_index(self) -> int:
        return int(self._SyncObj__raftCommitIndex)

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index

    @property
    def last_applied(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    @last_applied.setter
    def last_applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    @property
    def office_index(self) -> int | None:
        """The index of the no-op that this leader appended when it was elected."""
        index: int | None = self._SyncObj__noopIDx
        return index

    @property
    def election_deadline(self) -> float:
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, at: float) -> None:
        self._SyncObj__raftElectionDeadline = at

    def term_at(self, index: int) -> int:
        """Of an entry that must be in the log, its base included."""
        term = self.journal.term_at(index)
        assert term is not None, f"entry {index} is not in the log"
        return term

    def next_index(self, peer: int) -> int:
        return int(self._SyncObj__raftNextIndex[self.peers[peer]])

    def set_next_index(self, peer: int, index: int) -> None:
        self._SyncObj__raftNextIndex[self.peers[peer]] = index

    def match_index(self, peer: int) -> int:
        return int(self._SyncObj__raftMatchIndex.get(self.peers[peer], 0))

    def forget_match(self, peer: int) -> None:
        self._SyncObj__raftMatchIndex[self.peers[peer]] = 0

    # Calls into the engine

    def engine_tick(self) -> None:
        self._enter()
        self.doTick(0.0)

    def engine_receive(self, peer: int, message: dict[str, Any]) -> None:
        self._enter()
        self._SyncObj__onMessageReceived(self.peers[peer], message)

    def engine_connected(self, peer: int) -> None:
        self._SyncObj__onNodeConnected(self.peers[peer])

    def engine_disconnected(self, peer: int) -> None:
        self._SyncObj__onNodeDisconnected(self.peers[peer])

    def step_down(self, term: int) -> None:
        """A higher term was seen: become a follower without a vote in that term."""
        assert term >= self.term, f"from term {self.term} back to {term}"
        # Within the same term the vote stays: a second one could elect two leaders.
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__raftLeader = None
        self._SyncObj__setState(FOLLOWER)


__all__ = ["PinnedEngine", "UnsupportedPySyncObj", "pysyncobj"]
