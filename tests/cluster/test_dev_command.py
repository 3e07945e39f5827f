"""`raftmq dev`: real processes, started, killed, restarted, stopped, and never left over."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.errors import BrokerNotAvailable, DirectoryInUse, RequestTimedOut
from raftmq.local.cluster import LocalCluster
from raftmq.local.directory import find_layout, is_ours
from raftmq.local.process import Process, process_of, send, wait_end
from raftmq.local.running import read_running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.cluster

PROJECT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} -m raftmq"  # as the tests call it, and as it names its commands
PATIENCE_SECONDS = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A directory for a cluster of which nothing runs any more when the test is over."""
    root = tmp_path / "cluster"
    yield root
    if is_ours(find_layout(root)):
        LocalCluster.attach(root).kill()


def command(root: Path, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "raftmq", "dev", *map(str, arguments), "--dir", str(root)]


def dev(root: Path, *arguments: object, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Until it ends, in the way that is expected."""
    result = subprocess.run(
        command(root, *arguments), cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert result.returncode == exit_code, result
    assert "Traceback" not in result.stderr
    return result


def run(*arguments: str, stdin: str = "") -> str:
    """What another command prints; it must succeed."""
    program = [sys.executable, "-m", "raftmq", *arguments]
    done = subprocess.run(
        program, cwd=PROJECT, capture_output=True, text=True, check=False, input=stdin
    )
    assert done.returncode == 0, done
    return done.stdout


def states(root: Path, exit_code: int = 0) -> dict[int, str]:
    """As `status` says."""
    rows = objects(dev(root, "status", "-o", "json", exit_code=exit_code).stdout)
    return {row["broker_id"]: row["state"] for row in rows if row["type"] == "broker"}


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def processes(root: Path) -> list[Process]:
    """Of the nodes, as they were written down."""
    return [node.process for node in read_running(find_layout(root)).nodes.values()]


class Foreground:
    """A `raftmq dev` that stays; what it says goes to files."""

    def __init__(self, root: Path, arguments: tuple[object, ...], closing: ExitStack) -> None:
        self.out, self.err = root.with_suffix(".out"), root.with_suffix(".err")
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                command(root, *arguments), cwd=PROJECT, stdout=out, stderr=err
            )
        closing.callback(self.process.wait)
        closing.callback(self.process.kill)

    def wait_said(self, text: str) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.err.read_text()
            return text in self.out.read_text() + self.err.read_text()

        wait_until(look)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def foreground(root: Path, *arguments: object) -> Iterator[Foreground]:
    """Ready, and killed at the end if it has not ended."""
    with ExitStack() as closing:
        one = Foreground(root, arguments, closing)
        one.wait_said("bootstrap: ")
        yield one


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pause(process: Process) -> None:
    """Until all of its threads stand still: the one that takes the signal may wait for a core."""
    send(process, signal.SIGSTOP)
    tasks = Path("/proc") / str(process.pid) / "task"
    wait_until(
        lambda: all(_state(task / "stat") == "T" for task in tasks.iterdir()),
    )


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]


# -- detached ----------------------------------------------------------------------------------


def test_a_detached_cluster(root: Path) -> None:
    """It outlives the command; brokers are killed and restarted one by one, then all stopped."""
    started = dev(root, "--detach", "--port", 0)
    assert started.stdout.startswith("bootstrap: 127.0.0.1:")
    assert f"raftmq dev stop --dir {root}" in started.stdout
    assert states(root) == {1: "ready", 2: "ready", 3: "ready"}
    *brokers, summary = objects(dev(root, "status", "-o", "json").stdout)
    assert started.stdout.splitlines()[0] == f"bootstrap: {summary['bootstrap']}"
    assert (summary["ready"], summary["is_detached"]) == (3, True)
    assert [row["pid"] for row in brokers] == [process.pid for process in processes(root)]

    assert "already, without a terminal" in dev(root, exit_code=1).stderr
    dev(root, "kill", 2)
    assert states(root, exit_code=7) == {1: "ready", 2: "ended", 3: "ready"}
    assert "broker 2 does not run" in dev(root, "kill", 2, exit_code=1).stderr
    dev(root, "restart", 2)
    assert states(root) == {1: "ready", 2: "ready", 3: "ready"}
    before = processes(root)
    dev(root, "restart", 2)
    assert [process in before for process in processes(root)].count(False) == 1

    before = processes(root)
    dev(root, "stop")
    assert states(root, exit_code=7) == {1: "stopped", 2: "stopped", 3: "stopped"}
    assert all(wait_end(process, 0.0) for process in before)
    assert "stopped: node=2" in (root / "node-2.log").read_text()


def test_a_port_that_is_taken_meanwhile(root: Path) -> None:
    """A broker that cannot come back says why, and the others stay."""
    dev(root, "--detach", "--brokers", 3, "--port", 0)
    visitor = LocalCluster.attach(root)
    dev(root, "kill", 3)
    with socket.create_server(visitor.plan.address(3)):
        result = dev(root, "restart", 3, exit_code=1)
        *tail, last = result.stderr.splitlines()
        assert "broker 3 has ended before it was ready" in last
        assert "Address already in use" in last
        assert any(line.startswith("  | ") for line in tail)
    assert states(root, exit_code=7) == {1: "ready", 2: "ready", 3: "ended"}


def test_no_broker_starts(root: Path) -> None:
    """Nothing is left of a start that failed, detached or not."""
    with LocalCluster.open(root, brokers=1, port=0):
        pass
    (root / "node-1" / "meta.json").write_text("{")
    for arguments in ([], ["--detach"]):
        result = dev(root, *arguments, exit_code=1)
        assert "broker 1 has ended before it was ready" in result.stderr.splitlines()[-1]
        assert "meta.json is not readable" in result.stderr.splitlines()[-1]
        assert processes(root) == []


# -- in the foreground -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_in_order_and_comes_back(root: Path, number: signal.Signals) -> None:
    """A signal ends it with 0; the same directory is the same cluster, on the same ports."""
    with foreground(root, "--brokers", 1, "--port", 0) as one:
        way_in = one.out.read_text().splitlines()[0]
        [process] = processes(root)
        assert one.end(number) == 0
        assert wait_end(process, 0.0)
    log = root / "node-1.log"
    assert log.read_text().count("stopped: node=1") == 1
    with foreground(root) as one:
        assert one.out.read_text().splitlines()[0] == way_in
        assert one.end(number) == 0
    assert log.read_text().count("stopped: node=1") == 2
    assert log.read_text().count("new data directory") == 1


def test_others_do_something_to_it(root: Path) -> None:
    """It says what happens to its brokers, and ends when somebody else stops them."""
    with foreground(root, "--port", 0) as one:
        in_use = f"is in use by process {one.process.pid}: stop it with `{PROGRAM} dev stop"
        assert in_use in dev(root, exit_code=1).stderr
        dev(root, "kill", 2)
        one.wait_said(f"broker 2 has ended; `{PROGRAM} dev restart 2 --dir")
        dev(root, "restart", 2)
        one.wait_said("broker 2 is ready")
        restarted = read_running(find_layout(root)).nodes[2].process
        dev(root, "stop")
        assert one.process.wait(PATIENCE_SECONDS) == 0
        assert wait_end(restarted, 0.0)
    after = one.err.read_text().partition("broker 2 is ready")[2]
    assert "stopped by another command" in after
    assert "restart" not in after, "advice as after a crash"


def test_the_first_consumer_reads_at_once(root: Path) -> None:
    """Each `consume -g` of a beginner is the first of its group: none waits for others."""
    with foreground(root, "--brokers", 1, "--port", 0):
        where = ["-b", LocalCluster.attach(root).bootstrap]
        run(*where, "topic", "create", "orders")
        run(*where, "produce", "orders", stdin="hello\n")
        began = time.monotonic()
        assert run(*where, "consume", "orders", "-g", "g", "-o", "earliest", "-n", "1") == "hello\n"
        assert time.monotonic() - began < 3, "without the delay it is some tenths of a second"


def test_killed_it_leaves_nothing(root: Path) -> None:
    """Neither what it started, nor what others restarted; then the directory may be used again."""
    with foreground(root, "--brokers", 2, "--port", 0) as one:
        dev(root, "kill", 1)
        dev(root, "restart", 1)
        alive = processes(root)
        assert len(alive) == 2
        assert one.end(signal.SIGKILL) == -signal.SIGKILL
        assert all(wait_end(process, PATIENCE_SECONDS) for process in alive)
    assert "does not run" in dev(root, "restart", 1, exit_code=1).stderr
    before = LocalCluster.attach(root).bootstrap
    with foreground(root, "--port", 0) as one:  # it may move, too
        assert states(root) == {1: "ready", 2: "ready"}
        assert LocalCluster.attach(root).bootstrap != before
        assert one.end(signal.SIGINT) == 0


def test_a_paused_broker_whose_owner_was_killed(root: Path) -> None:
    """It cannot end before it is continued: whoever comes next ends it."""
    with foreground(root, "--brokers", 1, "--port", 0) as one:
        [process] = processes(root)
        pause(process)
        one.end(signal.SIGKILL)
        assert not wait_end(process, 0.2)
    with foreground(root) as one:
        assert wait_end(process, 0.0)
        assert one.end(signal.SIGINT) == 0


def test_an_impatient_ctrl_c(root: Path) -> None:
    """The second one kills what does not end."""
    with foreground(root, "--brokers", 1, "--port", 0) as one:
        [process] = processes(root)
        pause(process)
        one.process.send_signal(signal.SIGINT)
        one.wait_said("stopping; Ctrl-C once more kills")
        assert not wait_end(process, 0.2)
        assert one.end(signal.SIGINT) == 0
        assert wait_end(process, 0.0)


def test_a_signal_during_the_start(root: Path) -> None:
    """The brokers are not ready, and will not be: it ends with 130 and leaves nothing."""
    with ExitStack() as closing:
        one = Foreground(root, ("--port", 0), closing)
        wait_until(lambda: is_ours(find_layout(root)) and len(processes(root)) == 3)
        alive = processes(root)
        for process in alive:
            pause(process)
        one.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        one.process.send_signal(signal.SIGINT)  # impatient, as they do not end
        assert one.process.wait(PATIENCE_SECONDS) == 130
        assert all(wait_end(process, 0.0) for process in alive)
    assert one.err.read_text().endswith("raftmq: interrupted\n")
    assert one.out.read_text() == ""


# -- out of a program --------------------------------------------------------------------------


def test_a_cluster_in_a_program(root: Path) -> None:
    """As demonstrations and benchmarks use it."""
    with LocalCluster.open(root, brokers=3, port=0) as cluster:
        assert cluster.bootstrap.count(",") == 2
        assert cluster.kill(1) == [1]
        assert cluster.kill(1) == []
        cluster.start(1)
        cluster.wait_ready(1)
        cluster.start(1)  # runs already
        with pytest.raises(DirectoryInUse, match=f"is in use by process {os.getpid()}"):
            LocalCluster.open(root)
        assert cluster.stop(3) == []
        assert [one.state for one in cluster.status()] == ["ready", "ready", "stopped"]
        cluster.start()
        cluster.wait_ready()
        alive = processes(root)
        assert len(alive) == 3
    assert all(wait_end(process, 0.0) for process in alive)
    assert not cluster.is_started


def test_deadlines(root: Path) -> None:
    """A broker that is paused does not stop; one without a majority is not ready."""
    with LocalCluster.open(root, brokers=2, port=0) as cluster:
        pause(read_running(find_layout(root)).nodes[1].process)
        assert cluster.stop(1, seconds_max=0.2) == [1]
        with pytest.raises(BrokerNotAvailable, match="broker 1 was stopped meanwhile, or never"):
            cluster.wait_ready(1)
        cluster.kill(2)
        cluster.start(1)
        with pytest.raises(RequestTimedOut, match=r"broker 1 is not ready after 0\.2 s: "):
            cluster.wait_ready(1, seconds_max=0.2)


def test_only_the_process_that_was_written_down_is_signalled(root: Path) -> None:
    """The file outlives a boot, and the pids in it may belong to others then."""
    with (
        LocalCluster.open(root, brokers=1, port=0) as cluster,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as stranger,
    ):
        layout = find_layout(root)
        text = layout.running.read_text()
        [node] = processes(root)
        layout.running.write_text(text.replace(f'"pid": {node.pid}', f'"pid": {stranger.pid}'))
        assert cluster.kill(1) == []
        assert not wait_end(process_of(stranger.pid), 0.0)
        layout.running.write_text(text)
        stranger.kill()


def test_the_thread_that_started_it_ends(root: Path) -> None:
    """A cluster belongs to the process, not to whichever thread called."""
    with LocalCluster.open(root, brokers=1, port=0) as cluster:
        for call in (cluster.kill, cluster.start, cluster.wait_ready):
            thread = Thread(target=call)
            thread.start()
            thread.join()
        assert [one.state for one in cluster.status()] == ["ready"]
        assert not wait_end(processes(root)[0], 0.2)
