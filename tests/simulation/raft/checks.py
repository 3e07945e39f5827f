"""The invariants of the quorum, checked after every command and every turn.

Owns the record of committed commands, as the first node applied them, and compares every other
node with it: same command, same term, same answer, same image. Raises Violation where it
happens, so that the trace ends there. What clients were promised is judged in `clients.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import Refused
from raftmq.metadata.image import EMPTY_IMAGE, MetadataImage
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.raft.engine.replication import own_entry

if TYPE_CHECKING:
    from raftmq.metadata.commands import AnyResult
    from raftmq.metadata.raft.engine.node import RaftNode


class Violation(Exception):
    """A promise was broken."""


class TooLittle(Exception):
    """What happened proves nothing: the plan of this world is no good."""


def demand(condition: object, message: str) -> None:
    if not condition:
        raise Violation(message)


class Applied(NamedTuple):
    command: bytes
    result: AnyResult
    image: MetadataImage


class Ledger:
    """What the quorum has committed, and who leads in which term.

    Attributes:
        versions: the index of every command of the machine, rising.
        applied: by index.
        leaders: by term.
        enrolments: how many were committed, by voter.
    """

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.applied: dict[int, Applied] = {}
        self.leaders: dict[int, int] = {}
        self.enrolments = Counter[int]()
        self._committed: dict[int, tuple[bytes, int]] = {}

    def machine_for(self, name: str) -> WatchedMachine:
        return WatchedMachine(self, name)

    def on_applied(self, machine: WatchedMachine, index: int, applied: Applied) -> None:
        """Every node applies the same commands in the same order, and leaves none out."""
        name, at = machine.name, machine.position
        result = applied.result
        if isinstance(result, Refused):
            demand(result.code is not ErrorCode.UNKNOWN_SERVER_ERROR, f"{name}: {result.message}")
        if at == len(self.versions):
            newest = self.versions[-1] if self.versions else 0
            demand(index > newest, f"{name} applies {index}, {newest} was applied before")
            self.versions.append(index)
            self.applied[index] = applied
        expected = self.versions[at]
        demand(index == expected, f"{name} applies {index}, but {expected} comes next")
        first = self.applied[index]
        same = (applied.command, applied.result) == (first.command, first.result)
        demand(same, f"{name} applies {applied[:2]} at {index}, another node {first[:2]}")
        machine.position += 1

    def on_installed(self, machine: WatchedMachine, index: int) -> None:
        """A snapshot stands for exactly the commands up to its index, and never goes back."""
        position = bisect_right(self.versions, index)
        name, before = machine.name, machine.position
        demand(position >= before, f"{name} goes back to snapshot {index}")
        version = self.versions[position - 1] if position else 0
        expected = self.applied[version].image if version else EMPTY_IMAGE
        same = machine.image._replace(changes=()) == expected._replace(changes=())
        demand(same, f"{name}: the snapshot of {index} shows something else than {version}")
        machine.position = position

    def on_turn(self, name: str, node: RaftNode, checked: int) -> int:
        """After a turn of a voter; returns up to where its log is checked now."""
        if node.is_leader:
            leader = self.leaders.setdefault(node.term, node.node_id)
            demand(leader == node.node_id, f"{leader} and {node.node_id} lead term {node.term}")
        commit_index, last_index = node.commit_index, node.journal.last_index
        demand(commit_index <= last_index, f"{name} commits {commit_index} of {last_index}")
        demand(node.last_applied <= commit_index, f"{name} applied beyond {commit_index}")
        first = max(checked, node.journal.first_index) + 1
        if first <= commit_index:
            for entry, index, term in node.journal.entries(first, commit_index + 1, 1 << 40):
                own = own_entry(entry)
                if own is not None and index not in self._committed:
                    self.enrolments[own.voter] += 1
                known = self._committed.setdefault(index, (entry, term))
                demand(
                    known == (entry, term),
                    f"{name} commits another entry {index}: {(entry, term)} instead of {known}",
                )
        return max(checked, commit_index)


class WatchedMachine(MetadataMachine):
    """The real one, under observation.

    Attributes:
        position: how many commands of the ledger it has applied.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__()
        self._ledger, self.name, self.position = ledger, name, 0

    def apply(self, index: int, command: bytes) -> AnyResult:
        before = self.image.version
        result = super().apply(index, command)
        demand(self.image.version == index > before, f"{self.name}: {index} after {before}")
        self._ledger.on_applied(self, index, Applied(command, result, self.image))
        return result

    def install(self, index: int, decoded: object) -> None:
        before = self.image.version
        super().install(index, decoded)
        demand(self.image.version >= before, f"{self.name}: {index} after {before}")
        self._ledger.on_installed(self, index)
