"""`raftmq dev` without a process: what it refuses, with which exit code, and what it says."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.main import main
from raftmq.cli.nodes.dev_run import welcome
from raftmq.cli.nodes.dev_visit import dev_command, telling
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.errors import (
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    DirectoryInUse,
    InvalidConfig,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
)
from raftmq.local import directory as directory_module
from raftmq.local.cluster import LocalCluster
from raftmq.local.plan import ClusterPlan, Layout
from raftmq.local.process import Process, process_of, this_process
from raftmq.local.running import NodeProcess, Running, write_running

if TYPE_CHECKING:
    from collections.abc import Iterator


def dev(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["dev", *map(str, arguments)])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the default directory would be made."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster(place: Path) -> Iterator[LocalCluster]:
    """Held by this process, in the default directory; nothing runs."""
    cluster = LocalCluster.open(place / "raftmq-data", brokers=2, port=0)
    yield cluster
    cluster.close()


def expect(result: Result, exit_code: int, *parts: str) -> None:
    """One line, of which these are parts."""
    assert result.exit_code == exit_code, result.output
    assert result.stderr.startswith("raftmq: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


# -- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["", "status", "stop", "kill", "restart"])
def test_help(verb: str) -> None:
    """Each says how it is used, with an example."""
    result = dev(*verb.split(), "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"Usage: raftmq dev {verb}".rstrip() in result.stdout
    assert "Example" in result.stdout


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("--brokers 0", "Invalid value for '--brokers': 0 is not in the range 1<=x<=9."),
        ("--brokers 10", "Invalid value for '--brokers'"),
        ("--brokers three", "'three' is not a valid integer range"),
        ("--port -1", "Invalid value for '--port'"),
        ("--port 65508", "0<=x<=65507"),
        ("--brokrs 3", "No such option '--brokrs'"),
        ("stpo", "No such command 'stpo'. Did you mean 'stop'?"),
        ("kill", "Missing argument 'N'"),
        ("kill two", "'two' is not a valid integer"),
        ("status -o xml", "'xml' is not one of"),
        ("--port 9400 stop", "--port is for starting a cluster, not for stop: leave it out"),
        ("--brokers 3 kill 1", "--brokers is for starting a cluster, not for kill: leave it out"),
        ("--detach status", "--detach is for starting a cluster, not for status: leave it out"),
    ],
)
def test_a_wrong_command_line(place: Path, arguments: str, part: str) -> None:
    """Names what is wrong; nothing is made."""
    expect(dev(*arguments.split()), ExitCode.USAGE, part)
    assert list(place.iterdir()) == []


def test_a_foreign_directory(place: Path) -> None:
    """It is left as it is."""
    (place / "thesis.tex").touch()
    expect(dev("--dir", "."), ExitCode.USAGE, "holds 'thesis.tex' and no cluster.json")
    expect(dev("--dir", "thesis.tex"), ExitCode.USAGE, "thesis.tex is no directory")
    assert [path.name for path in place.iterdir()] == ["thesis.tex"]


def test_another_number_of_brokers(cluster: LocalCluster) -> None:
    """Says how many there are."""
    cluster.close()
    expect(dev("--brokers", 3), ExitCode.USAGE, "has 2 brokers, not 3: leave out --brokers")


def test_a_port_in_use(cluster: LocalCluster) -> None:
    """Says which, what wants it, and the way out."""
    cluster.close()
    with socket.create_server(("127.0.0.1", cluster.plan.port + 1)):
        taken = f"port {cluster.plan.port + 1} (broker 2 wants it for clients)"
        expect(dev(), ExitCode.FAILED, taken, "choose other ports with --port")


@pytest.mark.usefixtures("cluster")
def test_a_directory_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds it: says who, and how to stop it."""
    monkeypatch.setattr(directory_module, "LOCK_SECONDS_MAX", 0.0)
    expect(dev(), ExitCode.FAILED, f"in use by process {this_process().pid}: stop it with")


def test_brokers_that_were_left_alone(cluster: LocalCluster) -> None:
    """A detached cluster runs on the directory."""
    cluster.close()
    nodes = {1: NodeProcess(this_process(), 0)}
    write_running(Layout(cluster.directory), Running(is_started=True, nodes=nodes))
    expect(dev(), ExitCode.FAILED, "brokers [1] run on", "raftmq dev stop --dir")
    write_running(Layout(cluster.directory), Running())


@pytest.mark.parametrize("verb", ["status", "stop", "kill 1", "restart 1"])
def test_no_cluster(place: Path, verb: str) -> None:
    """Nothing there, or something else; nothing is made."""
    expect(dev(*verb.split()), ExitCode.NOT_FOUND, "no cluster in raftmq-data: `raftmq dev` starts")
    other = dev(*verb.split(), "--dir", place)
    expect(other, ExitCode.NOT_FOUND, f"no cluster in {place}: `raftmq dev --dir {place}`")
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("verb", ["kill", "restart"])
def test_no_such_broker(verb: str) -> None:
    """Says which there are."""
    expect(dev(verb, 3), ExitCode.NOT_FOUND, "there is no broker 3; there are brokers 1 to 2")


@pytest.mark.parametrize("verb", ["kill", "restart"])
def test_a_cluster_that_was_stopped(cluster: LocalCluster, verb: str) -> None:
    """One broker of it alone is of no use."""
    cluster.close()
    expect(dev(verb, 1), ExitCode.FAILED, "raftmq-data does not run: `raftmq dev` starts it")


@pytest.mark.usefixtures("cluster")
def test_a_broker_that_does_not_run() -> None:
    """There is nothing to kill."""
    expect(dev("kill", 2), ExitCode.FAILED, "broker 2 does not run: `raftmq dev restart 2`")


def test_a_plan_that_cannot_be_read(cluster: LocalCluster) -> None:
    """Damage is told, not guessed over."""
    Layout(cluster.directory).plan.write_text("{")
    expect(dev("status"), ExitCode.FAILED, "cluster.json is not readable")


# -- status and stop ---------------------------------------------------------------------------


def test_status_as_a_table(cluster: LocalCluster) -> None:
    """A line for each broker; not all are ready."""
    result = dev("status")
    assert (result.exit_code, result.stderr) == (ExitCode.UNHEALTHY, "")
    titles, first, _, _, bootstrap = result.stdout.splitlines()
    assert titles.split() == ["broker", "state", "pid", "address", "log"]
    assert first.split() == [
        "1", "stopped", "-", str(cluster.plan.address(1)), str(cluster.directory / "node-1.log"),
    ]  # fmt: skip
    assert bootstrap == f"bootstrap: {cluster.bootstrap}"


def test_status_as_json(cluster: LocalCluster) -> None:
    """Fields as the help lists them."""
    broker, _, summary = map(json.loads, dev("status", "-o", "json").stdout.splitlines())
    assert broker == {
        "type": "broker", "broker_id": 1, "state": "stopped", "pid": None,
        "address": str(cluster.plan.address(1)), "directory": str(cluster.directory / "node-1"),
        "log": str(cluster.directory / "node-1.log"),
    }  # fmt: skip
    assert summary == {
        "type": "summary", "directory": str(cluster.directory), "bootstrap": cluster.bootstrap,
        "brokers": 2, "ready": 0, "is_started": True, "is_detached": False,
    }  # fmt: skip
    cluster.close()
    *_, summary = map(json.loads, dev("status", "-o", "json").stdout.splitlines())
    assert (summary["is_started"], summary["is_detached"]) == (False, None)


def test_the_directory_before_and_after_the_verb(cluster: LocalCluster, place: Path) -> None:
    """Either place will do; the one after the verb wins."""
    assert "raftmq-data does not" not in dev("--dir", cluster.directory, "status").stderr
    assert dev("--dir", cluster.directory, "status").exit_code == ExitCode.UNHEALTHY
    both = dev("--dir", place, "status", "--dir", cluster.directory)
    assert both.exit_code == ExitCode.UNHEALTHY


def test_stop_where_nothing_runs(cluster: LocalCluster) -> None:
    """What was wanted is so already."""
    cluster.close()
    result = dev("stop")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no broker runs in {cluster.directory}\n"


def test_stop_of_what_was_left_over(cluster: LocalCluster) -> None:
    """The owner is gone, and a broker of it, paused, is not."""
    cluster.close()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as left:
        nodes = {1: NodeProcess(process_of(left.pid), 0)}
        owner = Process(left.pid, "another boot")
        layout = Layout(cluster.directory)
        write_running(layout, Running(is_started=True, owner=owner, nodes=nodes))
        assert dev("stop").stderr.endswith("stopped\n")
        assert left.wait() is not None
    assert cluster.status()[0].state == "stopped"


# -- words -------------------------------------------------------------------------------------


def test_commands_to_type(place: Path) -> None:
    """The directory is in them only where it must be, and shells understand it."""
    default = Path("raftmq-data")
    assert dev_command("kill 1", default) == "raftmq dev kill 1"
    assert dev_command("", Path("a b")) == "raftmq dev --dir 'a b'"


@pytest.mark.parametrize(
    ("port", "where"), [(9292, ""), (9400, " -b 127.0.0.1:9400,127.0.0.1:9401")]
)
def test_the_way_in(cluster: LocalCluster, port: int, where: str) -> None:
    """The first line is for programs; the others can be typed as they are."""
    cluster.plan = ClusterPlan(cluster_id="local-1", brokers=2, port=port)
    place = Path("raftmq-data")
    lines = welcome(cluster, place, detach=False).splitlines()
    assert lines[0] == f"bootstrap: 127.0.0.1:{port},127.0.0.1:{port + 1}"
    assert f"  raftmq topic create orders{where}" in lines
    assert "  raftmq dev kill 2" in lines
    assert lines[-1] == "Ctrl-C stops it; `raftmq dev` brings it back with its data."
    assert "  raftmq dev stop" in welcome(cluster, place, detach=True).splitlines()


def test_signals_are_as_they_were(place: Path) -> None:
    """Whoever calls the command within a program keeps its own."""
    (place / "file").touch()
    before = signal.getsignal(signal.SIGTERM)
    assert dev("--dir", "file").exit_code == ExitCode.USAGE
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (InvalidConfig(["x"]), ExitCode.USAGE),
        (BrokerIdNotRegistered("x"), ExitCode.NOT_FOUND),
        (RequestTimedOut("x"), ExitCode.UNREACHABLE),
        (Unreachable("x"), ExitCode.FAILED),
        (BrokerNotAvailable("x"), ExitCode.FAILED),
        (DirectoryInUse("x"), ExitCode.FAILED),
    ],
)
def test_what_goes_wrong_has_an_exit_code(
    error: RaftmqError, exit_code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a broker said last comes first, the error as the one line at the end."""
    error.add_note("starting\nthe disk is full")
    with pytest.raises(CommandError, match="x") as caught, telling():
        raise error
    assert caught.value.exit_code == exit_code
    assert capsys.readouterr().err == "  | starting\n  | the disk is full\n"
