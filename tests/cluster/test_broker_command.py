"""A broker that cannot start says why, in a line; its exit code tells of what kind it is."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from raftmq.cli.nodes.startup_hints import lock_holder
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.node_process import PROJECT
from tests.cluster.quorum_outcasts import flip_byte
from tests.cluster.quorum_words import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.cluster

FAILED, USAGE = 1, 2


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[BrokerCluster]:
    """Nobody runs yet."""
    with BrokerCluster(tmp_path) as cluster:
        yield cluster


def expect_end(cluster: BrokerCluster, *overrides: str, status: int) -> str:
    """Node 1 ends by itself; its last words."""
    cluster.expect_end([1])
    cluster.start([1], *overrides)
    ending = cluster.wait_end(1)
    assert ending.status == status, ending
    assert "Traceback" not in ending.stderr
    last_words = ending.stderr.strip().splitlines()[-1]
    assert last_words.startswith("raftmq: "), ending.stderr
    return last_words


def run_once(cluster: BrokerCluster, *nodes: int) -> None:
    """Until the directories are theirs."""
    cluster.start(nodes)
    for node_id in nodes:
        meta = cluster.directory(node_id) / "meta.json"
        journals = cluster.directory(node_id) / "quorum/journal"
        cluster.wait(
            f"node {node_id} to begin",
            lambda meta=meta, journals=journals: (
                meta.exists() and any(each.stat().st_size for each in journals.glob("*.journal"))
            ),
        )
    cluster.kill(nodes)


def said_by(
    config: Path, *options: str, under: Sequence[str] = (), **variables: str
) -> tuple[int, list[str]]:
    """The exit code of a node, and every line that it has said on stderr; on stdout it is mute."""
    command = [sys.executable, "-m", "raftmq", "broker", "--config", str(config), *options]
    done = subprocess.run(
        [*under, *command],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | variables,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


FIVE_MISTAKES = """
[node]
id = "one"
clusterid = "orders"
directory = "/var/lib/raftmq"
[quorum.voters]
1 = "10.0.0.1"
[[listeners]]
name = "brokers"
bind = "10.0.0.1:99999"
[[listener]]
name = "clients"
"""


def test_a_file_with_five_mistakes(tmp_path: Path) -> None:
    """Told in one go, each on a line with its key; nothing else is said, nothing is begun."""
    config = tmp_path / "node.toml"
    config.write_text(FIVE_MISTAKES)
    assert said_by(config) == (
        USAGE,
        [
            "raftmq: [listener]: unknown section, did you mean [listeners]?",
            "raftmq: node.clusterid: unknown, did you mean node.cluster_id?",
            "raftmq: node.id = 'one': expected a whole number from 0 to 2147483647",
            "raftmq: quorum.voters.1 = '10.0.0.1': no port; write host:port",
            "raftmq: listeners.brokers.bind = '10.0.0.1:99999': port '99999' is no number from 1 to"
            " 65535",
        ],
    )


def test_mistakes_in_every_layer(alone: BrokerCluster) -> None:
    """Of the environment and of the command line, told together with those of the file."""
    assert said_by(
        alone.config(1), "-o", "node.idd=3", "-o", "x", RAFTMQ_NODE__RAK="a", RAFTMQ_NODE__ID="-1"
    ) == (
        USAGE,
        [
            "raftmq: RAFTMQ_NODE__RAK: means no setting, did you mean RAFTMQ_NODE__RACK?",
            "raftmq: -o x: expected key=value, like node.id=2",
            "raftmq: node.idd: unknown, did you mean node.id?",
            "raftmq: node.id = -1 from RAFTMQ_NODE__ID: expected a whole number from 0 to"
            " 2147483647",
        ],
    )


def test_no_settings(alone: BrokerCluster) -> None:
    """The file is not there."""
    path = alone.config(1)
    path.unlink()
    assert said_by(path) == (
        USAGE,
        [f"raftmq: {path}: there is no such file, name one with --config"],
    )


def test_without_assertions(alone: BrokerCluster) -> None:
    """Python -O is refused before anything is read."""
    said = "raftmq: its assertions are switched off: start Python without -O, and without"
    assert said_by(alone.config(1), PYTHONOPTIMIZE="1") == (FAILED, [f"{said} PYTHONOPTIMIZE"])


def test_a_number_of_voters_that_is_unwise(alone: BrokerCluster) -> None:
    """It is warned of, and the node starts: here it ends for another reason."""
    directory = alone.directory(1)
    directory.write_text("a file")
    status, [warning, last_words] = said_by(alone.config(1), "-o", "quorum.voters.4=10.0.0.4:1")
    assert status == USAGE
    assert warning == (
        "raftmq: warning: quorum.voters: 4 voters, an even number: 1 may be down, which 3 would"
        " allow as well; take 3 or 5"
    )
    assert last_words == (
        f"raftmq: node.directory = {directory}: is no directory; name one, or a path where there is"
        " nothing yet"
    )


def test_a_port_in_use(alone: BrokerCluster) -> None:
    """Somebody else listens where clients are to come, or the other voters."""
    for port, key in zip(
        alone.ports[1], ("quorum.voters.1", "listeners.clients.bind"), strict=False
    ):
        with socket.create_server((HOST, port)):
            said = expect_end(alone, status=FAILED)
            assert said == (
                f"raftmq: {key}: cannot listen on {HOST}:{port}: Address already in use; another"
                " process listens there: stop it (`ss -ltnp` names it), or choose another port"
            )


def test_several_problems_of_the_machine(alone: BrokerCluster) -> None:
    """Two ports that are taken and a directory that cannot be made: told together, a line each,
    and nothing is touched."""
    voters, clients, _ = alone.ports[1]
    with socket.create_server((HOST, voters)), socket.create_server((HOST, clients)):
        status, lines = said_by(alone.config(1))
        assert status == FAILED
        assert [line.partition(": cannot")[0] for line in lines] == [
            "raftmq: listeners.clients.bind",
            "raftmq: quorum.voters.1",
        ]
        assert not alone.directory(1).exists()
        status, lines = said_by(alone.config(1), "-o", "node.directory=/proc/raftmq")
        assert status == FAILED
        assert [line.split()[1].strip(":") for line in lines] == [
            "node.directory",
            "listeners.clients.bind",
            "quorum.voters.1",
        ]


def test_an_address_of_another_machine(alone: BrokerCluster) -> None:
    """Copied from a neighbour's settings, say."""
    said = expect_end(alone, "listeners.brokers.bind=192.0.2.1:9294", status=FAILED)
    assert said == (
        "raftmq: listeners.brokers.bind: cannot listen on 192.0.2.1:9294: Cannot assign requested"
        " address; this machine has no such address: name one of its own, or 0.0.0.0"
    )


def test_a_directory_in_use(alone: BrokerCluster) -> None:
    """By a broker that runs, under the same id: its process is named."""
    alone.start([2])
    alone.wait("node 2 to begin", lambda: alone.directory(2).joinpath("meta.json").exists())
    as_node_2 = ("node.id=2", f"node.directory={alone.directory(2)}")
    said = expect_end(alone, *as_node_2, status=FAILED)
    assert said.startswith(f"raftmq: {alone.directory(2)} is in use by another process; stop it")
    is_known = lock_holder(alone.directory(2) / ".lock") != ""
    assert (f"; it is held by process {alone.pid(2)} (" in said) == is_known


def test_the_directory_of_another_node(alone: BrokerCluster) -> None:
    """Node 1 finds node 2's, or the one of a cluster that is not its own, and changes nothing."""
    run_once(alone, 1, 2)
    before = everything_in(alone.directory(2))
    said = expect_end(alone, f"node.directory={alone.directory(2)}", status=USAGE)
    assert "belongs to node 2 of cluster 'rehearsal', this is node 1 of" in said
    assert everything_in(alone.directory(2)) == before
    said = expect_end(alone, "node.cluster_id=another", status=USAGE)
    assert "belongs to node 1 of cluster 'rehearsal', this is node 1 of 'another'" in said


def everything_in(directory: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in sorted(directory.rglob("*"))
    }


def test_a_directory_of_other_things(alone: BrokerCluster) -> None:
    """A slip of the finger must not litter somebody's home."""
    home = alone.directory(1)
    (home / "letters").mkdir(parents=True)
    (home / "letters" / "to-mother.txt").write_text("Dear mother")
    before = everything_in(home)
    assert said_by(alone.config(1)) == (
        USAGE,
        [
            f"raftmq: node.directory = {home}: is not empty, and no node's data directory (it has"
            " no meta.json): found letters; name an empty directory, or one that does not exist yet"
        ],
    )
    assert everything_in(home) == before


def test_a_directory_that_may_not_be_written(alone: BrokerCluster) -> None:
    """Not even by root, as on /proc: the system's own words, and no traceback."""
    said = expect_end(alone, "node.directory=/proc/raftmq", status=FAILED)
    assert said == (
        "raftmq: node.directory = /proc/raftmq: cannot be made in /proc: No such file or directory"
    )


def test_a_directory_of_somebody_else(alone: BrokerCluster) -> None:
    """Its owner is whoever installed it, and the node runs under a user of its own."""
    directory = alone.directory(1)
    directory.mkdir(mode=0o555)
    powers = "-dac_override"  # root has them, and no other user
    ordinary = ["setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}"]
    if os.getuid() != 0:
        ordinary = []
    elif shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv to prevent it")
    assert said_by(alone.config(1), under=ordinary) == (
        FAILED,
        [
            f"raftmq: node.directory = {directory}: cannot be written: Permission denied; the user"
            f" that runs this (uid {os.getuid()}) must own {directory} and what is in it, see"
            f" `ls -ld {directory}`"
        ],
    )


def test_a_damaged_journal(alone: BrokerCluster) -> None:
    """Of the quorum: the node must stay out of it."""
    run_once(alone, 1, 2)
    [journal] = alone.directory(1).glob("quorum/journal/*.journal")
    flip_byte(journal)
    assert f"{journal}: at byte " in expect_end(alone, status=FAILED)


def test_a_damaged_identity(alone: BrokerCluster) -> None:
    """The file that says whose the directory is cannot be read."""
    run_once(alone, 1)
    meta = alone.directory(1) / "meta.json"
    meta.write_text("{")
    assert f"{meta} is not readable" in expect_end(alone, status=FAILED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_is_ready(alone: BrokerCluster, number: signal.Signals) -> None:
    """It waits for a majority that does not come, and ends in order."""
    alone.start([1])
    alone.wait("node 1 to listen", lambda: "voter unreachable" in alone.stderr(1))
    [ending] = alone.terminate([1], number)
    assert "Traceback" not in ending.stderr
    assert f"stopping: signal={number.name}" in ending.stderr
    assert "stopped: node=1" in ending.stderr
