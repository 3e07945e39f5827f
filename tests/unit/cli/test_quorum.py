"""`raftmq quorum status`: voters that answer or do not, and what is made of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
from click.testing import CliRunner, Result

import raftmq
from raftmq.cli.clusters.quorum_status import VoterAnswer, VoterSilence, ask_all, judge, report
from raftmq.cli.main import main
from raftmq.errors import Unreachable
from raftmq.metadata.raft.net.messages import StatusReply
from raftmq.metadata.raft.status import (
    ObserverStatus,
    QuorumStatus,
    SnapshotStatus,
    VoterStatus,
    encode_status,
)
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.protocol import parse_address
from raftmq.wire.messages.cluster import VoterAddress
from raftmq.wire.messages.metadata import Metadata, MetadataReply
from tests.unit.client.administration.served import serve_bureau
from tests.unit.metadata.raft.voters import ADDRESSES, Stranger, hello_of, open_network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock


def quorum(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["quorum", *map(str, arguments)])


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# -- status: the verdict -----------------------------------------------------------------------


def voter(node_id: int, *, connected: bool = True, standing: str = "established") -> VoterStatus:
    return VoterStatus(node_id, connected, standing, None)


def answer(node_id: int = 1, *, away: tuple[int, ...] = (), **changes: Any) -> VoterAnswer:
    """Of one of three voters, of which it sees all but those that are `away`."""
    values = {
        "cluster_id": "ours", "state": "follower", "leader_id": 1, "term": 7, "commit_index": 90,
        "applied_index": 90, "last_index": 91, "journal_bytes": 4096, "snapshot": None,
        "voters": [voter(other, connected=other not in away) for other in (1, 2, 3)],
        "observers": [],
    }  # fmt: skip
    return VoterAnswer(ADDRESSES[node_id], QuorumStatus(node_id=node_id, **(values | changes)))


def test_a_leader_with_its_majority_is_healthy() -> None:
    """One voter of three may be away."""
    verdict = judge([answer(state="leader", away=(3,))])
    what = "node 1 leads in term 7 with 2 of 3 voters"
    assert verdict == (True, 1, 7, what, "voter1:9000")


@pytest.mark.parametrize(
    "changes",
    [
        {"away": (2, 3)},
        {"voters": [voter(1), voter(2, standing="blank"), voter(3, connected=False)]},
    ],
    ids=["cut off", "blank"],
)
def test_a_leader_without_a_majority_is_not(changes: dict[str, Any]) -> None:
    """It does not know yet that it fell, or the others do not count."""
    verdict = judge([answer(state="leader", **changes)])
    assert (verdict.is_healthy, verdict.leader_id) == (False, 1)
    assert "with 1 of 3 voters, which is no majority: nothing is committed" in verdict.what


def test_a_follower_says_whom_it_follows() -> None:
    """As long as it is connected to it."""
    assert judge([answer(2)]).is_healthy
    verdict = judge([answer(2, leader_address="10.0.0.1:9293")])
    assert verdict.leader_address == "10.0.0.1:9293"
    assert verdict.what.endswith("says node 2; ask it for the lags, at 10.0.0.1:9293")
    verdict = judge([answer(2, away=(1,))])
    assert verdict[:3] == (False, None, 7)
    assert verdict.what.startswith("no leader is known in term 7, says node 2; not connected: ")


def test_nobody_leads() -> None:
    """An election is under way, or cannot be won."""
    assert not judge([answer(2, state="candidate", leader_id=None)]).is_healthy


def test_a_new_quorum_waits_for_all_of_its_voters() -> None:
    """Two blank voters of three are up: it says who is missing, and that all are needed once."""
    voters = [voter(1, standing="blank"), voter(2, standing="blank"), voter(3, connected=False)]
    verdict = judge([answer(term=0, leader_id=None, voters=voters)])
    assert verdict.what == (
        "no leader is known in term 0, says node 1; not connected: voter 3; blank: voter 1,"
        " voter 2; a new quorum begins when all of its voters are up at the same time"
    )


# -- status: asking ----------------------------------------------------------------------------


async def serve(stream: trio.abc.Stream, status: QuorumStatus) -> None:
    """A voter that can do one thing."""
    stranger = Stranger(stream)
    await stranger.say(hello_of(status.node_id))
    await stranger.hear()
    await stranger.hear()
    await stranger.say(StatusReply(encode_status(status)))
    await stranger.hear()


async def test_the_leaders_view_comes_first(autojump_clock: MockClock) -> None:
    """All are asked; a leader of an older term, who was cut off, stands behind the new one."""
    statuses = {
        1: answer(1, state="leader", term=6, away=(2, 3)).status,
        2: answer(2, state="leader", leader_id=2).status,
    }
    async with open_network() as network:
        for node_id, status in statuses.items():
            network.listeners[ADDRESSES[node_id]] = lambda stream, it=status: serve(stream, it)
        answers, silences = await ask_all(network, list(ADDRESSES.values()))
    assert [found.status for found in answers] == [statuses[2], statuses[1]]
    assert [silence.address for silence in silences] == [ADDRESSES[3]]


# -- status: what is printed -------------------------------------------------------------------

LEADERS = answer(
    state="leader",
    snapshot=SnapshotStatus(80, 6, 12345),
    voters=[
        VoterStatus(1, True, "established", 0), VoterStatus(3, False, None, None),
        VoterStatus(2, True, "established", 5),
    ],
    observers=[ObserverStatus(11, 2)],
)  # fmt: skip


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Who answered, whom they see, the verdict; who is silent stands on stderr."""
    silence = VoterSilence(ADDRESSES[3], "connect to voter3:9000: no answer in time")
    assert report([LEADERS], [silence], "", as_json=False) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "node  address      state   leader  term",
        "   1  voter1:9000  leader       1     7",
        "",
        "node  commit  applied  last  journal bytes  snapshot  snapshot bytes",
        "   1      90       90    91           4096        80           12345",
        "",
        "seen by  node  role      connected  standing     lag",
        "      1     1  voter     yes        established    0",
        "      1     2  voter     yes        established    5",
        "      1     3  voter     no         -              -",
        "      1    11  observer  yes        -              2",
        "",
        "node 1 leads in term 7 with 2 of 3 voters",
    ]
    assert err == "raftmq: connect to voter3:9000: no answer in time\n"


def test_the_objects(capsys: pytest.CaptureFixture[str]) -> None:
    """Told apart by their type; the names are those that a voter uses itself."""
    unhealthy = answer(2, leader_id=None, state="candidate")
    assert report([unhealthy], [VoterSilence(ADDRESSES[3], "why")], "", as_json=True) == 7
    rows = rows_of(capsys.readouterr().out)
    assert rows[0]["type"] == "voter"
    assert rows[0]["address"] == "voter2:9000"
    assert json.loads(encode_status(unhealthy.status)).items() <= rows[0].items()
    assert rows[1] == {"type": "unreachable", "address": "voter3:9000", "what": "why"}
    assert (rows[2]["type"], rows[2]["is_healthy"], rows[2]["leader_id"]) == (
        "summary", False, None,
    )  # fmt: skip


# -- status: the whole command -----------------------------------------------------------------


@pytest.fixture
def address() -> Iterator[str]:
    """Where a leader listens, in a thread of its own."""
    started_at: list[Address] = []
    ready, scope = threading.Event(), trio.CancelScope()
    status = LEADERS.status

    async def listen() -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                network, anywhere = TcpNetwork(), Address("127.0.0.1", 0)
                started_at.append(
                    await nursery.start(
                        network.serve, lambda stream: serve(stream, status), anywhere
                    )
                )
                token.append(trio.lowlevel.current_trio_token())
                ready.set()

    token: list[trio.lowlevel.TrioToken] = []
    thread = threading.Thread(target=trio.run, args=(listen,))
    thread.start()
    assert ready.wait(10)
    yield f"127.0.0.1:{started_at[0].port}"
    token[0].run_sync_soon(scope.cancel)
    thread.join()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_status_over_tcp(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the verb counts most, then before the noun, then the environment."""
    nobody = f"127.0.0.1:{free_port()}"
    last = "node 1 leads in term 7 with 2 of 3 voters\n"
    monkeypatch.setenv("RAFTMQ_BOOTSTRAP", nobody)
    lines = [["-b", nobody, "quorum", "status", "-b", address], ["-b", address, "quorum", "status"]]
    for arguments in lines:
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.endswith(last)
    monkeypatch.setenv("RAFTMQ_BOOTSTRAP", f"{address}, {nobody}")
    result = quorum("status", "-o", "json")
    assert result.exit_code == 0
    assert [row["type"] for row in rows_of(result.stdout)] == ["voter", "unreachable", "summary"]
    assert result.stderr.startswith(f"raftmq: connect to {nobody}: ")


def test_status_where_nobody_listens() -> None:
    """A line for each address, and an exit code of its own."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    result = quorum("status", "-b", ",".join(addresses))
    assert (result.exit_code, result.stdout) == (5, "")
    *lines, last = result.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        f"connect to {address}" for address in addresses
    ]
    assert last == "raftmq: start the nodes there, or correct -b"


def test_status_by_way_of_a_broker(address: str) -> None:
    """A listener for clients is no voter's port, but its broker knows those of the voters."""
    nobody = Address("127.0.0.1", free_port())
    with serve_bureau() as (bureau, broker):
        at = parse_address(address)
        bureau.voters = (VoterAddress(1, *at), VoterAddress(2, *nobody))
        result = quorum("status", "-b", broker)
        assert result.exit_code == 0
        assert result.stdout.endswith("node 1 leads in term 7 with 2 of 3 voters\n")
        assert result.stderr == (
            f"raftmq: connect to {nobody}: Connection refused (a voter, as the broker at {broker}"
            " says)\n"
        )
        assert quorum("status", "-b", f"{broker},{address}").stdout == result.stdout
        bureau.voters = ()
        silent = quorum("status", "-b", broker)
        assert (silent.exit_code, silent.stdout) == (5, "")
        assert "give the address that the voters know each other by" in silent.stderr
        bureau.instead[1, Metadata] = MetadataReply(-1, "cluster-a")
        early = quorum("status", "-b", broker)
        assert (early.exit_code, early.stdout) == (5, "")
        assert "its broker has no metadata yet, and cannot name the voters" in early.stderr
        assert "raftmq dev" not in early.stderr


def test_a_client_at_a_voters_port(address: str) -> None:
    """It is told where it is."""
    result = CliRunner().invoke(main, ["-b", address, "topic", "list"])
    assert (result.exit_code, result.stdout) == (5, "")
    assert f"{address} is where the voters of cluster 'ours' meet, and serves" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_program_at_a_voters_port(address: str) -> None:
    """It is told so, too, in one sentence."""
    with (
        pytest.raises(Unreachable) as caught,
        raftmq.sync.connect(address, connect_timeout_ms=2_000),
    ):
        pass
    told = f"{address} is where voters meet, and serves no clients: give the address of a listener"
    assert str(caught.value) == f"no broker has answered: {told} for clients"


def test_status_that_is_interrupted() -> None:
    """Whoever answers takes a while; Ctrl-C ends that like any other command."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "raftmq", "quorum", "status", "-b", address]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        with listener.accept()[0] as stream:
            stream.recv(1)  # it has introduced itself, and waits
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr) == (130, "\nraftmq: interrupted\n")


GLOBALLY_EMPTY = ["-b", "", "quorum", "status"]


def test_wrong_addresses_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they come from; commands that ask nobody do not mind."""
    result = quorum("status", "-b", "voter1,[::1]:0,")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "Invalid value for -b: address 'voter1': no port; write host:port" in result.stderr
    assert "; address '[::1]:0': port '0' is no number" in result.stderr
    assert "; 'voter1,[::1]:0,' has a comma too many" in result.stderr
    for empty in (quorum("status", "-b", ""), CliRunner().invoke(main, GLOBALLY_EMPTY)):
        assert (empty.exit_code, "nothing there; write host:port" in empty.stderr) == (2, True)
    monkeypatch.setenv("RAFTMQ_BOOTSTRAP", "nonsense")
    assert quorum("status").exit_code == 2
    assert quorum("verify", "-h").exit_code == 0
