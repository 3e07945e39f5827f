"""Broker processes on this machine, clients that load them, and the ledger of what was promised.

Owns the settings files and what is asked of the whole. Nodes 1 to 3 vote; others follow them.
"""

from __future__ import annotations

import itertools
import signal
import time
from typing import TYPE_CHECKING

from raftmq.local.ports import keep_any_ports
from raftmq.model import Address
from tests.cluster.broker_ledger import BrokerLedger
from tests.cluster.broker_load import SYNCED, Load
from tests.cluster.broker_logs import read_logs
from tests.cluster.broker_process import AS_OPERATED, BrokerProcess
from tests.cluster.broker_watch import View
from tests.cluster.node_process import NodeFailed
from tests.cluster.nodes import Nodes
from tests.cluster.quorum_words import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.cluster.broker_ledger import Logs
    from tests.cluster.broker_load import Topic
    from tests.cluster.nodes import Ending

VOTERS = (1, 2, 3)
_PORTS_PER_NODE = 3  # for voters, clients, brokers


class BrokerCluster(Nodes[BrokerProcess]):
    """Attributes:
    load: of the first topic; `start_load` begins it and that of the others.
    ledger: of the first topic, with the findings of all.
    """

    def __init__(
        self,
        root: Path,
        *,
        nodes: Collection[int] = VOTERS,
        topics: Sequence[Topic] = (SYNCED,),
        directories: Mapping[int, Path] | None = None,
        program: Callable[[int], Sequence[str]] = lambda _: AS_OPERATED,
        advertised: Mapping[int, Address] | None = None,
    ) -> None:
        """`directories`, `program` (see `BrokerProcess`) and `advertised`, where clients are told
        to connect to, go by node id.
        """
        super().__init__()
        self._advertised = advertised or {}
        self.nodes = sorted(nodes)
        self._root, self._program = root, program
        self._directories = directories or {node: root / f"data-{node}" for node in self.nodes}
        ports = self._closing.enter_context(keep_any_ports(_PORTS_PER_NODE * len(nodes)))
        self.ports = {
            node_id: ports[at * _PORTS_PER_NODE : (at + 1) * _PORTS_PER_NODE]
            for at, node_id in enumerate(self.nodes)
        }
        for node_id in self.nodes:
            self.config(node_id).write_text(self._settings(node_id))
        addresses = {node_id: self.address(node_id) for node_id in self.nodes}
        findings = list[str]()
        self.loads = [Load(addresses, BrokerLedger(findings), topic) for topic in topics]
        self.load = self.loads[0]
        self.ledger = self.load.ledger

    def __exit__(self, *details: object) -> None:
        for load in self.loads:
            load.stop()
        super().__exit__(*details)

    def is_ready(self, node_id: int) -> bool:
        return self._processes[node_id].is_ready

    def said(self, node_id: int) -> str:
        """On stderr, the end of it."""
        return self._processes[node_id].stderr()

    def config(self, node_id: int) -> Path:
        return self._root / f"node-{node_id}.toml"

    def directory(self, node_id: int) -> Path:
        return self._directories[node_id]

    def address(self, node_id: int) -> Address:
        """For clients."""
        return Address(HOST, self.ports[node_id][1])

    def _settings(self, node_id: int) -> str:
        voters = [f'{voter} = "{HOST}:{self.ports[voter][0]}"' for voter in VOTERS]
        lines = [
            "[node]",
            f"id = {node_id}",
            'cluster_id = "rehearsal"',
            f'directory = "{self.directory(node_id)}"',
            "[quorum.voters]",
            *voters,
        ]
        for name, port in zip(("clients", "brokers"), self.ports[node_id][1:], strict=True):
            lines += ["[[listeners]]", f'name = "{name}"', f'bind = "{HOST}:{port}"']
            if name == "clients" and node_id in self._advertised:
                lines.append(f'advertised = "{self._advertised[node_id]}"')
        return "\n".join([*lines, ""])

    # What is done to them

    def start(self, nodes: Iterable[int], *overrides: str) -> None:
        for node_id in nodes:
            assert node_id not in self._processes, f"node {node_id} runs"
            self._processes[node_id] = BrokerProcess(
                node_id,
                self.config(node_id),
                *overrides,
                on_news=self._on_news,
                program=self._program(node_id),
            )

    def start_all(self) -> None:
        self.start(self.nodes)
        self.wait_ready(self.nodes)

    def start_load(self) -> None:
        for load in self.loads:
            load.start()
        self.wait_served(after=time.monotonic())

    def terminate(
        self, nodes: Collection[int], number: signal.Signals = signal.SIGTERM
    ) -> list[Ending]:
        """A signal to all of them that asks them to stop, and how they ended."""
        self.expect_end(nodes)
        for node_id in nodes:
            self._processes[node_id].signal(number)
        endings = [self.wait_end(node_id) for node_id in nodes]
        for node_id, ending in zip(nodes, endings, strict=True):
            if ending.status != 0:
                raise NodeFailed(f"node {node_id} stopped with {ending}")
        return endings

    # What is waited for

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """As above; nor may the load end."""

        def looked() -> bool:
            failures = "".join(load.failure for load in self.loads)
            if failures:
                raise NodeFailed(f"the load has ended: {failures}")
            return is_so()

        super().wait(what, looked)

    def wait_ready(self, nodes: Iterable[int]) -> None:
        for node_id in nodes:
            process = self._processes[node_id]
            self.wait(f"node {node_id} to be ready", lambda process=process: process.is_ready)

    def work_until(self, count: int) -> None:
        """Until so many more batches were acknowledged."""
        wanted = len(self.ledger.acknowledged) + count
        what = f"{count} acknowledgements"
        self.wait(what, lambda: len(self.ledger.acknowledged) >= wanted)

    def wait_view(self, what: str, is_so: Callable[[View], bool], load: Load | None = None) -> View:
        """Until some running node says so of the topic, asked from now on."""
        now, seen, asked = time.monotonic(), list[View](), load or self.load

        def look() -> bool:
            views = [asked.view(node_id) for node_id in self.running]
            seen[:] = [view for view in views if view and view.asked_at > now and is_so(view)]
            return bool(seen)

        self.wait(f"{asked.topic.name}: {what}", look)
        return seen[0]

    def wait_led(self, by: Collection[int], *, after: float) -> float:
        """Until every partition is led by one of these nodes; since when, as they see it."""
        nodes, found = frozenset(by), list[float]()

        def look() -> bool:
            at = self.load.led_at(nodes, after=after)
            found[:] = [] if at is None else [at]
            return bool(found)

        self.wait(f"leaders among {sorted(by)}", look)
        return found[0]

    def wait_whole(self) -> None:
        """Until all nodes are in sync everywhere."""
        nodes = frozenset(self.nodes)
        for load in self.loads:
            self.wait_view("all in sync", lambda view: view.is_whole(nodes), load)

    def wait_served(self, *, after: float) -> None:
        """Until a batch that was sent after that moment is acknowledged in each partition."""
        logs = [log for load in self.loads for log in load.acknowledgements.values()]
        self.wait(
            "acknowledgements in all partitions",
            lambda: all(log and log[-1].began_at > after for log in logs),
        )

    def unserved_seconds(self, *, since: float) -> float:
        """The longest time without an acknowledgement in some partition."""
        longest = 0.0
        for log in self.load.acknowledgements.values():
            times = [since, *(one.heard_at for one in list(log) if one.heard_at > since)]
            gaps = [end - start for start, end in itertools.pairwise(times)]
            longest = max([longest, *gaps])
        return longest

    # What is asked

    def view(self) -> View:
        """Of who leads what, and of the controller, when all of them run."""
        running = frozenset(self.running)
        return self.wait_view(
            "leaders and a controller",
            lambda view: view.is_led_by(running) and view.controller_id in running,
        )

    def compare(self) -> None:
        """Have the clients rest, and judge the logs of all nodes; then go on."""
        for load in self.loads:
            load.rest()
        for load in self.loads:
            self.wait("the clients to rest", lambda load=load: load.is_at_rest)
        self.wait_whole()
        for load in self.loads:
            self._compare(load)
        for load in self.loads:
            load.work()

    def _compare(self, load: Load) -> None:
        logs_of: dict[int, Logs] = {}

        def are_at_rest() -> bool:
            logs_of.update(self.read_logs(load))
            ends = [_ends(logs) for logs in logs_of.values()]
            return all(end == ends[0] == load.read_up_to for end in ends)

        self.wait(f"equal logs of {load.topic.name}, read to their ends", are_at_rest)
        assert load.high_watermarks == load.read_up_to
        load.ledger.compare(logs_of)

    def read_logs(self, load: Load) -> dict[int, Logs]:
        """Of its topic, by node, as they lie on the disks."""
        return {each: read_logs(self.directory(each), load.topic.name) for each in self.nodes}


def _ends(logs: Logs) -> dict[int, int]:
    return {partition: log[-1].end_offset if log else 0 for partition, log in logs.items()}
