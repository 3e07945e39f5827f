"""Which broker commands ask that were told of none."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from raftmq.cli.clusters import bootstrap
from raftmq.cli.main import main
from raftmq.local.ports import keep_any_ports
from raftmq.model import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "127.0.0.1"


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """In place of 9292 to 9294, where something may run on this machine."""
    with keep_any_ports(3) as ports:
        monkeypatch.setattr(bootstrap, "_DEFAULT_PORTS", ports)
        yield ports


def asked() -> list[int]:
    with click.Context(click.Command("topic")):
        addresses = bootstrap.bootstrap_addresses(None)
    assert {address.host for address in addresses} == {HOST}
    return [address.port for address in addresses]


@pytest.mark.parametrize(("killed", "found"), [((), 0), ((0,), 1), ((0, 1), 2), ((0, 1, 2), 0)])
def test_brokers_of_a_local_cluster(ports: list[int], killed: tuple[int, ...], found: int) -> None:
    """After `raftmq dev kill 1` commands find broker 2; where nothing runs they name the first."""
    with ExitStack() as closing:
        for number, port in enumerate(ports):
            if number not in killed:
                closing.enter_context(socket.create_server((HOST, port)))
        assert asked() == [ports[found]]


def test_what_was_said_is_taken(ports: list[int]) -> None:
    """With -b nothing is tried."""
    with socket.create_server((HOST, ports[0])), click.Context(click.Command("topic")):
        assert bootstrap.bootstrap_addresses("b:1,c:2") == (Address("b", 1), Address("c", 2))


GIVEN = "127.0.0.1:1"


@pytest.mark.parametrize("command", [["topic", "list"], ["quorum", "status"]])
@pytest.mark.parametrize(
    ("variables", "typed", "place"),
    [
        ({"RAFTMQ_BOOTSTRAP": "127.0.0.1:2"}, ["-b", GIVEN], "-b"),
        ({"RAFTMQ_BOOTSTRAP": GIVEN}, [], "RAFTMQ_BOOTSTRAP"),
        ({"RAFTMQ_PROFILE": "far"}, [], "--profile far"),
    ],
)
def test_addresses_that_were_given_and_do_not_answer(
    command: list[str], variables: dict[str, str], typed: list[str], place: str, tmp_path: Path
) -> None:
    """A person who names a cluster has one: the place that named it is told, not `raftmq dev`."""
    path = tmp_path / "raftmq" / "profiles.toml"
    path.parent.mkdir()
    path.write_text(f'[far]\nbootstrap = "{GIVEN}"\n')
    variables = {"XDG_CONFIG_HOME": str(tmp_path), **variables}
    result = CliRunner().invoke(main, [*typed, *command], env=variables)
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr.endswith(f"start the nodes there, or correct {place}\n")


@pytest.mark.parametrize("command", [["topic", "list"], ["quorum", "status"]])
def test_the_default_does_not_answer(
    command: list[str], ports: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who names no cluster may have none: `raftmq dev` is the way to one."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stdout) == (5, "")
    assert str(ports[0]) in result.stderr
    for part in ("start one with `raftmq dev`", "-b HOST:PORT", "RAFTMQ_BOOTSTRAP"):
        assert part in result.stderr
