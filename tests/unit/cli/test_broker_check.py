"""`raftmq broker --check` and `--probe` where no node runs."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import tomllib
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from raftmq.broker.node_config_keys import NODE_KEYS
from raftmq.broker.settings import parse_settings
from raftmq.cli.main import main
from raftmq.cli.nodes import broker_probe, start_checks
from raftmq.cli.nodes.overrides import override
from raftmq.cli.terminal.exits import ExitCode
from raftmq.local.ports import keep_any_ports
from raftmq.wire.messages.cluster import BrokerDescription, DescribeClusterReply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

FILE = """
[node]
id = 1
cluster_id = "orders"
directory = "{directory}"
[quorum.voters]
1 = "127.0.0.1:{}"
2 = "10.0.0.2:9293"
3 = "10.0.0.3:9293"
[[listeners]]
name = "clients"
bind = "127.0.0.1:{}"
[[listeners]]
name = "brokers"
bind = "127.0.0.1:{}"
"""


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with keep_any_ports(3) as ports:
        yield ports


@pytest.fixture
def config(tmp_path: Path, ports: list[int]) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(FILE.format(*ports, directory=tmp_path / "data"))
    return path


def broker(config: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["broker", "--config", str(config), *options])


def test_settings_that_are_right(config: Path) -> None:
    """Each that counts is printed, defaults too, with where it is from; nothing is made."""
    found = broker(config, "--check", "-o", "node.rack=room-1", "-o", "log.format=json")
    assert (found.exit_code, found.stderr) == (0, "")
    lines = found.stdout.splitlines()
    assert 'node.rack = "room-1"  # from -o' in lines
    assert "node.id = 1  # from the file" in lines
    assert 'quorum.voters.2 = "10.0.0.2:9293"  # from the file' in lines
    assert 'log.level = "info"  # default' in lines
    advertised = next(line for line in lines if line.startswith("listeners.brokers.advertised"))
    assert advertised.endswith("  # default")
    assert all("  # " in line for line in lines)
    assert not (config.parent / "data").exists()


def test_what_is_printed_may_be_given_again(config: Path) -> None:
    """Every line is an override, and all of them make the same node."""
    options = ["-o", "node.rack=room-1", "-o", "groups.size_max=7", "-o", "log.level=debug"]
    lines = broker(config, "--check", *options).stdout.splitlines()
    texts = [line.partition("  # ")[0].replace(" = ", "=", 1) for line in lines]
    values = {"listeners": []}
    override(values, texts)
    settings = parse_settings(values)
    assert (settings.rack, settings.groups.rules.size_max, settings.log.level) == (
        "room-1", 7, "debug",
    )  # fmt: skip
    in_file = tomllib.loads(config.read_text())
    override(in_file, [*options[1::2]])
    assert settings == parse_settings(in_file)
    printed = {text.partition("=")[0] for text in texts}
    left_out = {key.last_name for key in NODE_KEYS} - {name.rpartition(".")[2] for name in printed}
    assert left_out == {"<id>", "name"}, "ids and names are parts of keys"


def test_all_problems_at_once(config: Path, ports: list[int]) -> None:
    """A port that is taken, a host that is not this one: exit code 2, a line for each."""
    with socket.create_server(("127.0.0.1", ports[1])):
        found = broker(config, "--check", "-o", "listeners.brokers.bind=192.0.2.1:9294")
    assert (found.exit_code, found.stdout) == (ExitCode.USAGE, "")
    first, second = found.stderr.splitlines()
    assert first.startswith(
        f"raftmq: listeners.clients.bind: cannot listen on 127.0.0.1:{ports[1]}"
    )
    assert "`ss -ltnp` names it" in first
    assert "listeners.brokers.bind: cannot listen on 192.0.2.1:9294" in second


def test_wrong_settings(config: Path) -> None:
    """As a start would say it."""
    found = broker(config, "--check", "-o", "log.format=xml", "-o", "log.levl=info")
    assert found.exit_code == ExitCode.USAGE
    assert found.stderr.splitlines() == [
        "raftmq: log.levl: unknown, did you mean log.level?",
        'raftmq: log.format = \'xml\' from -o: expected "text" or "json"',
    ]


def test_where_a_whole_section_is_from(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-o` gives a table, a variable one key of another."""
    monkeypatch.setenv("RAFTMQ_LISTENERS__CLIENTS__ADVERTISED", "10.0.0.1:9292")
    lines = broker(config, "--check", "-o", "limits={connections_max=70}").stdout.splitlines()
    assert "limits.connections_max = 70  # from -o" in lines
    variable = "RAFTMQ_LISTENERS__CLIENTS__ADVERTISED"
    assert f'listeners.clients.advertised = "10.0.0.1:9292"  # from {variable}' in lines


def test_where_a_section_is_from_that_replaces_variables(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable sets one key, `-o` the whole section: the variable's value counts no more."""
    monkeypatch.setenv("RAFTMQ_LIMITS__CONNECTIONS_MAX", "65")
    lines = broker(config, "--check", "-o", "limits={connections_max=70}").stdout.splitlines()
    assert "limits.connections_max = 70  # from -o" in lines


def test_a_directory_of_another_user(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check by the user of the node finds before the start that it may not write there."""
    # Root may always.
    monkeypatch.setattr(os, "access", lambda _path, mode, **_effective: not mode & os.W_OK)
    directory = config.parent / "data"
    directory.mkdir()
    found = broker(config, "--check")
    assert found.exit_code == ExitCode.USAGE
    assert found.stderr == (
        f"raftmq: node.directory = {directory}: cannot be written: Permission denied; the user that"
        f" runs this (uid {os.getuid()}) must own {directory} and what is in it, see"
        f" `ls -ld {directory}`\n"
    )


def test_a_disk_that_is_read_only(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has mounted it so after an error: the disk is the matter, not permissions."""
    (config.parent / "data").mkdir()
    found = os.statvfs(config.parent)
    read_only = os.statvfs_result((*found[:8], found.f_flag | os.ST_RDONLY, *found[9:]))
    monkeypatch.setattr(os, "access", lambda _path, mode, **_effective: not mode & os.W_OK)
    monkeypatch.setattr(os, "statvfs", lambda _path: read_only)
    stderr = broker(config, "--check").stderr
    assert "cannot be written: Read-only file system; the file system is read-only: if" in stderr


@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_that_is_full(
    config: Path, is_new: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The check says so, of a new directory and of the node's own; a start warns of it and goes on:
    of a node that was stopped in order it needs no room, and its retention makes some."""
    if not is_new:
        (config.parent / "data").mkdir()
    found = os.statvfs(config.parent)
    full = os.statvfs_result((*found[:3], 2, 2, *found[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    check = broker(config, "--check")
    assert check.exit_code == ExitCode.USAGE
    assert check.stderr == f"raftmq: {full_disk(config)}\n"
    settings = parse_settings(tomllib.loads(config.read_text()))
    assert start_checks.check_start(settings, is_trial=False) == ""
    assert capsys.readouterr().err == f"raftmq: warning: {full_disk(config)}\n"


def full_disk(config: Path) -> str:
    return (
        f"node.directory = {config.parent}/data: No space left on device; the disk is full: free"
        " some space on it"
    )


def test_a_directory_that_is_a_link_to_nothing(config: Path) -> None:
    """The start cannot make a directory in its place: the check finds it before."""
    (config.parent / "data").symlink_to(config.parent / "gone")
    found = broker(config, "--check")
    assert found.exit_code == ExitCode.USAGE
    assert f"node.directory = {config.parent}/data: cannot be written" in found.stderr


def test_a_directory_that_nobody_can_make(config: Path) -> None:
    """Not even root, in /proc; nor below a file. Where it could be made nothing is left."""
    found = broker(config, "--check", "-o", "node.directory=/proc/raftmq/1")
    assert found.exit_code == ExitCode.USAGE
    assert found.stderr == (
        "raftmq: node.directory = /proc/raftmq/1: cannot be made in /proc: No such file or"
        " directory\n"
    )
    found = broker(config, "--check", "-o", f"node.directory={config}/data")
    assert f"cannot be made in {config}: Not a directory" in found.stderr
    assert broker(config, "--check").exit_code == 0
    assert [path.name for path in config.parent.iterdir()] == ["node.toml"]


def test_a_node_that_runs(config: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has locked its directory, whether or not the system shows by whom, and listens: its own
    addresses are not called taken."""
    directory = config.parent / "data"
    directory.mkdir()
    with (directory / ".lock").open("w") as lock, socket.create_server(("127.0.0.1", ports[1])):
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setattr(start_checks, "lock_holder", lambda _path: "")
        found = broker(config, "--check")
        assert (found.exit_code, found.stderr) == (
            0,
            f"raftmq: it runs already: another process holds {directory}; its addresses are not"
            " tried\n",
        )
    assert broker(config, "--check").stderr == ""


def test_limits_of_the_process(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few descriptors, little address space: warned of, as a start does."""
    monkeypatch.setattr(start_checks, "allow_many_files", lambda: 1024)
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (1 << 30, resource.RLIM_INFINITY))
    found = broker(config, "--check")
    assert found.exit_code == 0
    descriptors, space = found.stderr.splitlines()
    assert descriptors.startswith("raftmq: warning: few file descriptors: limit=1024, raise it (")
    assert space.startswith("raftmq: warning: little address space: limit=1024 MiB, raise it (")


def test_a_process_that_may_open_hardly_any_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would end somewhere: the check, and the start before it touches anything, say why."""
    monkeypatch.setattr(start_checks, "allow_many_files", lambda: 12)
    found = broker(config, "--check")
    assert found.exit_code == ExitCode.USAGE
    assert found.stderr == (
        "raftmq: too few file descriptors: limit=12, a start needs 60: raise it (LimitNOFILE,"
        " ulimit -n) to 65536 or more\n"
    )


def test_a_directory_of_another_node(config: Path) -> None:
    """It holds something else."""
    (config.parent / "data").mkdir()
    (config.parent / "data" / "thesis.tex").touch()
    found = broker(config, "--check")
    assert found.exit_code == ExitCode.USAGE
    assert "found thesis.tex" in found.stderr


def test_probes_where_nothing_listens(config: Path) -> None:
    """It may still wait for the others: alive, and not ready."""
    live = broker(config, "--probe", "live")
    assert (live.exit_code, live.stdout) == (0, "live: node 1, which does not listen yet\n")
    ready = broker(config, "--probe", "ready")
    assert ready.exit_code == ExitCode.UNREACHABLE
    assert "does not listen" in ready.stderr


def test_a_probe_of_something_else(config: Path, ports: list[int]) -> None:
    """It takes connections and says nothing, as a node whose loop hangs: not alive."""
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", ports[1])),
    ):
        patch.setattr(broker_probe, "ANSWER_SECONDS_MAX", 0.1)
        found = broker(config, "--probe", "live")
    assert found.exit_code == ExitCode.UNREACHABLE
    assert "gave no answer in 0.1 s" in found.stderr


@pytest.mark.parametrize(
    ("own_epoch", "problem"),
    [(7, ""), (None, ""), (-1, "it is not registered yet"), (8, "it is not registered yet")],
)
def test_only_this_very_process_is_ready(own_epoch: int | None, problem: str) -> None:
    """The metadata knows the process before it, or that of a disk that was replaced."""
    me = BrokerDescription(1, broker_epoch=7)
    reply = DescribeClusterReply("c", brokers=(me,), own_epoch=own_epoch)
    assert broker_probe.problem_of(1, reply) == problem


def test_a_check_is_no_probe(config: Path) -> None:
    """They are about different nodes."""
    found = broker(config, "--probe", "live", "--check")
    assert found.exit_code == ExitCode.USAGE
    assert "--check is for a node that does not run" in found.stderr
