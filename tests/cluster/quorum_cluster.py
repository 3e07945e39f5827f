"""Three quorum processes on this machine, and the ledger of all that they promised.

Owns what was heard of them and is asked of them; `nodes` owns the processes and the waiting.
"""

from __future__ import annotations

import time
from bisect import bisect
from typing import TYPE_CHECKING

from raftmq.local.ports import keep_any_ports
from tests.cluster.node_process import NodeFailed
from tests.cluster.nodes import Nodes
from tests.cluster.quorum_ledger import Ledger
from tests.cluster.quorum_process import QuorumProcess
from tests.cluster.quorum_visit import ask_status
from tests.cluster.quorum_words import (
    HOLD,
    REST,
    STOP,
    WORK,
    Acknowledged,
    Holding,
    Leads,
    Opened,
    Order,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from raftmq.metadata.raft.status import QuorumStatus
    from tests.cluster.quorum_words import AnyTold


class Heard:
    """Of one process."""

    def __init__(self) -> None:
        self.is_open = False
        self.leads = Leads(0, False)
        self.holdings: list[Holding] = []
        self.acknowledged_at: list[float] = []  # time.monotonic() of each batch


class QuorumCluster(Nodes[QuorumProcess]):
    """`order` is the pattern for all processes; see `start` for what differs."""

    def __init__(self, directories: Mapping[int, Path], **order: int) -> None:
        super().__init__()
        kept = self._closing.enter_context(keep_any_ports(len(directories)))
        ports = ",".join(map(str, kept))
        self.orders = {
            node_id: Order(directory, node_id, ports)._replace(**order)
            for node_id, directory in directories.items()
        }
        self.ledger = Ledger()
        self._lives = 0
        self._heard: dict[int, Heard] = {}

    @property
    def nodes(self) -> list[int]:
        return sorted(self.orders)

    # What is done to them

    def start(self, nodes: Iterable[int], *, under: Sequence[str] = (), **order: str | int) -> None:
        """Start processes (under `strace ...`, say) with changes to their orders."""
        for node_id in nodes:
            assert node_id not in self._processes, f"node {node_id} runs"
            self._lives += 1
            heard = self._heard[node_id] = Heard()
            self._processes[node_id] = QuorumProcess(
                self.orders[node_id]._replace(life=self._lives, **order),
                hear=lambda told, heard=heard: self._hear(heard, told),
                on_end=self._on_news,
                under=under,
            )

    def start_all(self) -> None:
        self.start(self.nodes)
        self.wait_open(self.nodes)

    def stop(self, nodes: Collection[int]) -> None:
        """A clean end."""
        self.expect_end(nodes)
        for node_id in nodes:
            self._processes[node_id].say(STOP)
        for node_id in nodes:
            ending = self.wait_end(node_id)
            if ending.status != 0:
                raise NodeFailed(f"node {node_id} stopped with {ending.status}: {ending.stderr}")

    def say(self, word: str) -> None:
        for process in self._processes.values():
            process.say(word)

    # What is waited for

    def wait_open(self, nodes: Iterable[int]) -> None:
        for node_id in nodes:
            heard = self._heard[node_id]
            self.wait(f"node {node_id} to open", lambda heard=heard: heard.is_open)

    def wait_leader(self) -> int:
        """Who leads, as far as was heard."""
        self.wait("a leader", lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None, "only `start` forgets what was heard"
        return leader

    def leader(self) -> int | None:
        """The running node that told last that it leads."""
        leading = [
            (heard.leads.term, node_id)
            for node_id, heard in self._heard.items()
            if heard.leads.is_leader and node_id in self._processes
        ]
        return max(leading)[1] if leading else None

    def wait_acknowledged(self, *, by: Collection[int], after: float) -> float:
        """When the first acknowledgement after that moment was heard of one of these nodes."""
        told = [self._heard[node_id].acknowledged_at for node_id in by]

        def first() -> float:
            return min(
                (at for times in told for at in times[bisect(times, after) :][:1]), default=0
            )

        self.wait(f"an acknowledgement by one of {list(by)}", lambda: first() > 0)
        return first()

    def work_until(self, count: int) -> None:
        """Until so many more keys were acknowledged, by whomever."""
        wanted = len(self.ledger.acknowledged) + count
        what = f"{count} acknowledgements"
        self.wait(what, lambda: len(self.ledger.acknowledged) >= wanted)

    # What is asked

    def status(self, node_id: int) -> QuorumStatus | None:
        """None if it does not answer now."""
        return ask_status(self.orders[node_id].voters()[node_id])

    def wait_status(self, node_id: int, what: str, is_so: Callable[[QuorumStatus], bool]) -> None:
        def asked() -> bool:
            status = self.status(node_id)
            return status is not None and is_so(status)

        self.wait(f"node {node_id} {what}", asked)

    def wait_caught_up(self, node_id: int) -> None:
        """Until it counts, and has applied what is committed now."""
        leader = self.wait_leader()
        committed: list[int] = []

        def knows_commit(status: QuorumStatus) -> bool:
            committed.append(status.commit_index)
            return True

        self.wait_status(leader, "to tell its commit index", knows_commit)
        self.wait_status(
            node_id,
            "to be established and caught up",
            lambda status: (
                status.voters[0].standing == "established" and status.applied_index >= committed[-1]
            ),
        )

    def wait_settled(self) -> None:
        for node_id in self.nodes:
            self.wait_caught_up(node_id)

    def compare(self) -> None:
        """Have all nodes rest until they agree on where the log ends, compare them, go on."""
        assert self.running == self.nodes, f"only {self.running} are running"
        self.say(REST)
        holdings: dict[int, Holding] = {}

        def are_at_rest() -> bool:
            if not self._are_level():
                return False
            holdings.update(self._ask_holdings())
            return len({holding.version for holding in holdings.values()}) == 1

        self.wait("all nodes to be at the same version", are_at_rest)
        self.ledger.compare(holdings)
        self.say(WORK)

    def _are_level(self) -> bool:
        """Whether everything that any log holds is applied everywhere."""
        statuses = [self.status(node_id) for node_id in self.nodes]
        places = {
            index
            for status in statuses
            for index in ((status.last_index, status.applied_index) if status else (-1,))
        }
        return len(places) == 1 and -1 not in places

    def _ask_holdings(self) -> dict[int, Holding]:
        before = {node_id: len(self._heard[node_id].holdings) for node_id in self.nodes}
        self.say(HOLD)
        for node_id, count in before.items():
            held = self._heard[node_id].holdings
            self.wait(
                f"what node {node_id} holds", lambda held=held, count=count: len(held) > count
            )
        return {node_id: self._heard[node_id].holdings[-1] for node_id in self.nodes}

    # What is heard, in the threads that read

    def _hear(self, heard: Heard, told: AnyTold) -> None:
        with self._news:
            self.ledger.record(told)
            match told:
                case Opened():
                    heard.is_open = True
                case Leads():
                    heard.leads = told
                case Holding():
                    heard.holdings.append(told)
                case Acknowledged():
                    heard.acknowledged_at.append(time.monotonic())
            self._news.notify_all()
