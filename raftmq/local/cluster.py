"""`LocalCluster`: start, stop, kill and restart the broker processes of a local cluster.

Owns the order of things: ports are reserved before nodes are started, nodes are stopped before the
lock of the directory is released. The processes are recorded in the directory (`running.py`), so
that the process that started a cluster and commands from other terminals can act on it at the same
time.

    with LocalCluster.open(directory, brokers=3, port=0) as cluster:
        cluster.kill(1)
        cluster.start(1)
        cluster.wait_ready(1)

Invariant: a node is only started while no process of it is alive.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec.structs import replace

import raftmq
from raftmq.errors import BrokerNotAvailable, InvalidConfig, RequestTimedOut
from raftmq.local.directory import find_layout, hold, is_ours, plan_for, read_plan, write_plan
from raftmq.local.plan import check_wishes
from raftmq.local.process import (
    has_ended,
    is_ready,
    last_lines,
    process_of,
    send,
    this_process,
    wait_end,
)
from raftmq.local.running import NodeProcess, Running, changing, read_running, write_running

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from raftmq.local.plan import ClusterPlan, Layout
    from raftmq.local.process import Process
    from raftmq.model import Address


# -- Starting -------------------------------------------------------------------------------------
# Starting the process of one node: `raftmq broker`, as an operator would.
#
# Owns what the process inherits: its log as stdout and stderr, nothing on stdin, and a session of
# its own, so that a Ctrl-C at the terminal reaches the owner only. Waits for nothing.


_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_DEFAULT_SIGNALS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ,
)  # fmt: skip  # what Python ignores, and what a shell may have told us to ignore


def start_node(layout: Layout, node_id: int, owner: Process | None) -> NodeProcess:
    """
    Args:
        owner: the node is killed when this process ends; None: it keeps running.
    """
    log = layout.log(node_id)
    position = log.stat().st_size if log.exists() else 0
    # Not a Popen, which warns when it is dropped while its process runs, as it may here.
    pid = os.posix_spawn(
        sys.executable,
        node_command(layout, node_id, owner),
        node_environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )
    return NodeProcess(process_of(pid), position)


def node_environment() -> dict[str, str]:
    """Ours, but for the wish to write no bytecode: each start would compile all modules anew."""
    return {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}


def node_command(layout: Layout, node_id: int, owner: Process | None) -> list[str]:
    program = ["raftmq"]
    # Wrapped by the program that ends with its owner.
    if owner is not None:
        program = ["raftmq.local.directory", str(owner.pid), owner.started]
    settings = str(layout.settings(node_id))
    return [*_python(), "-m", *program, "broker", "--config", settings]


def _python() -> list[str]:
    """The interpreter; with -P, as a user's random.py in the working directory is not for us.

    Without -P if raftmq itself was imported from the working directory, which is a checkout then.
    """
    is_here = Path(raftmq.__file__).parents[1] == Path.cwd()
    return [sys.executable] if is_here else [sys.executable, "-P"]


# -- Cluster --------------------------------------------------------------------------------------


READY_SECONDS_MAX = 60.0  # some seconds on an idle machine; a busy one, or recovery, is slower
STOP_SECONDS_MAX = 30.0  # a broker takes up to 10 s to hand over its partitions, then flushes
_GONE_SECONDS_MAX = 10.0  # after SIGKILL: longer means a disk that hangs
_LOOK_SECONDS = 0.05  # between two reads of the logs of nodes that start


class NodeStatus(NamedTuple):
    """Attributes:
    state: stopped (in order, or never started), ended (in another way), starting, ready, stopping.
    pid: None where no process runs.
    """

    node_id: int
    state: str
    pid: int | None
    address: Address
    directory: Path
    log: Path


class LocalCluster:
    """Made by `open` or `attach`. A context manager, within which its nodes run.

    Attributes:
        directory: of the cluster.
        plan: its nodes, addresses and ports.
    """

    def __init__(self, layout: Layout, plan: ClusterPlan, closing: ExitStack) -> None:
        self.directory, self.plan = layout.root, plan
        self._layout, self._closing = layout, closing

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        brokers: int | None = None,
        port: int | None = None,
        detach: bool = False,
    ) -> Self:
        """Lock the directory and reserve the ports; no node is started yet.

        Args:
            directory: made if it is not there. One with other things in it is refused.
            brokers: how many; None: as many as there are, or else 3.
            port: where the first one listens for clients, the others as `ClusterPlan` says; 0: on
                free ports; None: where they were last, or else 9292.
            detach: the processes keep running when this one ends, and after the `with`. Else they
                are killed when this process ends, for any reason.

        Raises:
            InvalidConfig: a number out of range, a foreign directory, or another number of
                brokers than there is.
            DirectoryInUse: the cluster runs already.
            Unreachable: a port is in use.
        """
        from raftmq.local.ports import keep_free_ports, keep_ports  # brings the network with it

        check_wishes(brokers, port)
        layout = find_layout(directory)
        with ExitStack() as closing:
            closing.enter_context(hold(layout))
            plan = plan_for(layout, brokers=brokers, port=port)
            _bury(read_running(layout))
            # As the user asked for free ports; the plan keeps the ones that are found.
            if plan.port == 0:
                plan, keepers = keep_free_ports(plan)
            else:
                keepers = keep_ports(plan)
            closing.enter_context(keepers)
            write_plan(layout, plan)
            with changing(layout):
                owner = None if detach else this_process()
                write_running(layout, Running(is_started=True, owner=owner))
            return cls(layout, plan, closing.pop_all())

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """Attach to a cluster that was started elsewhere, to inspect it or to act on it.

        Raises InvalidConfig if there is no local cluster.
        """
        layout = find_layout(directory)
        if not is_ours(layout):
            raise InvalidConfig([f"{layout.root} is no directory of a local cluster"])
        return cls(layout, read_plan(layout), ExitStack())

    def __enter__(self) -> Self:
        """Start all nodes, and wait until they are ready. If one fails, all are stopped."""
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            with self._closing:
                self._stop_or_kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the nodes that are bound to this process, and release the directory."""
        with self._closing:
            # Not if it is detached, or if another process has started it anew.
            if read_running(self._layout).owner == this_process():
                self._stop_or_kill()

    # State

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses for clients."""
        return self.plan.bootstrap

    @property
    def is_detached(self) -> bool:
        return read_running(self._layout).owner is None

    @property
    def is_started(self) -> bool:
        """It was started and not stopped since, though single brokers may have ended."""
        running = read_running(self._layout)
        # An owner that was killed has not noted the end, but its nodes have ended with it.
        return running.is_started and (running.owner is None or not has_ended(running.owner))

    def status(self) -> list[NodeStatus]:
        running = read_running(self._layout)
        return [self._status(each, running.nodes.get(each)) for each in self.plan.node_ids]

    def _status(self, node_id: int, node: NodeProcess | None) -> NodeStatus:
        log = self._layout.log(node_id)
        # Not in the file: stopped in order. In it without a process: it was killed, or crashed,
        # unless it was asked to stop.
        if node is None or has_ended(node.process):
            is_over = node is None or node.is_stopping
            state, pid = "stopped" if is_over else "ended", None
        else:
            state = "ready" if is_ready(log, node.log_position) else "starting"
            state, pid = "stopping" if node.is_stopping else state, node.process.pid
        directory = self._layout.data(node_id)
        return NodeStatus(node_id, state, pid, self.plan.address(node_id), directory, log)

    # Actions

    def start(self, *node_ids: int) -> None:
        """Start those of them that do not run, without waiting; all if none is named."""
        for node_id in self._chosen(node_ids):
            # Under the lock: two commands must not start two processes on one node's directory.
            with changing(self._layout):
                running = read_running(self._layout)
                node = running.nodes.get(node_id)
                if node is None or has_ended(node.process):
                    started = start_node(self._layout, node_id, running.owner)
                    nodes = {**running.nodes, node_id: started}
                    write_running(self._layout, replace(running, nodes=nodes))

    def wait_ready(self, *node_ids: int, seconds_max: float = READY_SECONDS_MAX) -> None:
        """Until they are active members of the cluster; all if none is named.

        Raises:
            BrokerNotAvailable: one has ended; the last lines of its log are a note of the error.
            RequestTimedOut: the same for one that is not ready in time.
        """
        waiting = self._chosen(node_ids)
        deadline = time.monotonic() + seconds_max
        while waiting := self._unready(waiting):
            if time.monotonic() > deadline:
                what = f"broker {waiting[0]} is not ready after {seconds_max:g} s"
                raise self._told(RequestTimedOut, what, waiting[0])
            time.sleep(_LOOK_SECONDS)

    def stop(self, *node_ids: int, seconds_max: float = STOP_SECONDS_MAX) -> list[int]:
        """SIGTERM, then SIGKILL to those that have not ended in time; all if none is named.

        Returns those that had to be killed.
        """
        nodes = self._mark_stopping(self._chosen(node_ids))
        for node in nodes.values():
            send(node.process, signal.SIGTERM)
        deadline = time.monotonic() + seconds_max
        late = [
            node_id
            for node_id, node in nodes.items()
            if not wait_end(node.process, max(0.0, deadline - time.monotonic()))
        ]
        _kill({node_id: nodes[node_id] for node_id in late})
        self._forget(nodes, is_all=not node_ids)
        return late

    def kill(self, *node_ids: int) -> list[int]:
        """SIGKILL, and wait until nothing is left of them; all if none is named.

        Returns those that did run.
        """
        chosen = self._chosen(node_ids)
        nodes = read_running(self._layout).nodes
        return _kill({node_id: nodes[node_id] for node_id in chosen if node_id in nodes})

    def _chosen(self, node_ids: Collection[int]) -> list[int]:
        for node_id in node_ids:
            self.plan.check_node(node_id)
        return list(node_ids or self.plan.node_ids)

    def _unready(self, node_ids: list[int]) -> list[int]:
        unready = []
        for status in self.status():
            if status.node_id in node_ids and status.state != "ready":
                unready.append(status.node_id)
                if status.state == "stopped":
                    raise BrokerNotAvailable(
                        f"broker {status.node_id} was stopped meanwhile, or never started"
                    )
                # Waiting would be in vain.
                if status.state == "ended":
                    what = f"broker {status.node_id} has ended before it was ready"
                    raise self._told(BrokerNotAvailable, what, status.node_id)
        return unready

    def _told(
        self, kind: type[BrokerNotAvailable | RequestTimedOut], what: str, node_id: int
    ) -> BrokerNotAvailable | RequestTimedOut:
        log = self._layout.log(node_id)
        node = read_running(self._layout).nodes.get(node_id)  # None: stopped from elsewhere since
        lines = last_lines(log, 0 if node is None else node.log_position)
        error = kind(f"{what}: {lines[-1] if lines else 'it has said nothing'} ({log})")
        error.add_note("\n".join(lines))
        return error

    def _stop_or_kill(self) -> None:
        """Stop all; a second Ctrl-C meanwhile kills them."""
        try:
            self.stop()
        except KeyboardInterrupt:
            self.kill()
            self._forget(read_running(self._layout).nodes, is_all=True)
            raise

    def _mark_stopping(self, node_ids: Collection[int]) -> dict[int, NodeProcess]:
        """Before they are signalled: `raftmq dev` in the foreground must not take their end for a
        crash."""
        with changing(self._layout):
            running = read_running(self._layout)
            nodes = {
                node_id: replace(node, is_stopping=node.is_stopping or not has_ended(node.process))
                for node_id, node in running.nodes.items()
                if node_id in node_ids
            }
            write_running(self._layout, replace(running, nodes={**running.nodes, **nodes}))
        return nodes

    def _forget(self, nodes: Mapping[int, NodeProcess], *, is_all: bool) -> None:
        """Remove these processes, unless new ones of the same nodes stand there."""
        gone = {node.process for node in nodes.values()}
        with changing(self._layout):
            running = read_running(self._layout)
            rest = {each: node for each, node in running.nodes.items() if node.process not in gone}
            is_started = running.is_started and not is_all
            write_running(self._layout, replace(running, is_started=is_started, nodes=rest))


def _bury(running: Running) -> None:
    """Kill nodes whose owner was killed a moment ago, or was while they were paused (SIGSTOP)."""
    late = _kill(running.nodes)
    assert not late or running.owner is not None, "these have no owner, and were not stopped"


def _kill(nodes: Mapping[int, NodeProcess]) -> list[int]:
    """Kill all, then wait for each; returns those that did run."""
    killed = [each for each, node in nodes.items() if send(node.process, signal.SIGKILL)]
    for node_id in killed:
        if not wait_end(nodes[node_id].process, _GONE_SECONDS_MAX):
            raise RequestTimedOut(
                f"broker {node_id}, process {nodes[node_id].process.pid}, is not gone"
                f" {_GONE_SECONDS_MAX:g} s after SIGKILL: its disk may hang"
            )
    return killed
