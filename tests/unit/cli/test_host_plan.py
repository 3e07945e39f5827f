"""`raftmq cluster configure`: ids, ports, racks and voters of a cluster on several hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from raftmq.broker.settings import BROKERS, BrokerSettings
from raftmq.cli.main import main
from tests.unit.broker.test_settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

THREE = ("--host", "10.0.0.1", "--host", "b.example", "--host", "2001:db8::3")


def configure(into: Path, *words: str, hosts: Sequence[str] = THREE) -> Result:
    line = ["cluster", "configure", "--id", "orders", *hosts, "--into", str(into), *words]
    return CliRunner().invoke(main, line)


def written(into: Path) -> list[BrokerSettings]:
    found = [load_settings(path) for path in into.glob("*/node-*.toml")]
    return sorted(found, key=lambda node: node.node_id)


def test_one_broker_on_each_host(tmp_path: Path) -> None:
    """As in deploy/: the usual ports and directory, all of them voters (A13.3)."""
    result = configure(tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    nodes = written(tmp_path)
    assert [node.node_id for node in nodes] == [1, 2, 3]
    assert [node.rack for node in nodes] == ["10.0.0.1", "b.example", "2001:db8::3"]
    assert all(node.is_voter and not node.warnings for node in nodes)
    assert {str(node.directory) for node in nodes} == {"/var/lib/raftmq"}
    assert [str(node.voters[3]) for node in nodes] == ["[2001:db8::3]:9293"] * 3
    told = [{one.name: str(one.advertised) for one in node.listeners} for node in nodes]
    assert told[1] == {"clients": "b.example:9292", BROKERS: "b.example:9294"}
    bound = [str(one.bind) for node in nodes for one in node.listeners]
    assert bound == [
        "10.0.0.1:9292",
        "10.0.0.1:9294",
        "0.0.0.0:9292",  # of a name: on its own machine it may mean a loopback address
        "0.0.0.0:9294",
        "[2001:db8::3]:9292",
        "[2001:db8::3]:9294",
    ]
    assert "10.0.0.1:9292,b.example:9292" in result.stdout


def test_several_brokers_on_a_host(tmp_path: Path) -> None:
    """Each has ports and a directory of its own; one of each host votes, and no more (A13.3)."""
    assert configure(tmp_path, "--brokers-per-host", "3", "--port", "9000").exit_code == 0
    nodes = written(tmp_path)
    assert [node.node_id for node in nodes if node.is_voter] == [1, 2, 3] == [*nodes[0].voters]
    by_rack: dict[str | None, list[BrokerSettings]] = {}
    for node in nodes:
        by_rack.setdefault(node.rack, []).append(node)
    assert [len(together) for together in by_rack.values()] == [3, 3, 3]
    for together in by_rack.values():
        ports = [one.bind.port for node in together for one in node.listeners]
        assert ports == [9000, 9002, 9003, 9005, 9006, 9008]
        assert len({node.directory for node in together}) == 3
    folders = {path.parent.name for path in tmp_path.glob("*/node-4.toml")}
    assert folders == {"10.0.0.1"}


def test_nothing_is_replaced(tmp_path: Path) -> None:
    """A second call ends with 4, and writes no file at all."""
    configure(tmp_path)
    (tmp_path / "10.0.0.1/node-1.toml").write_text("kept")
    (tmp_path / "b.example/node-2.toml").unlink()
    result = configure(tmp_path)
    assert result.exit_code == 4
    assert "node-1.toml exists already and is not replaced: choose another --into" in result.stderr
    assert (tmp_path / "10.0.0.1/node-1.toml").read_text() == "kept"
    assert not (tmp_path / "b.example/node-2.toml").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The files that were written before go again."""
    (tmp_path / "b.example").write_text("a file")
    result = configure(tmp_path)
    assert result.exit_code == 1
    assert "b.example: File exists" in result.stderr
    assert not list(tmp_path.glob("*/*.toml"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host", "b.example"), "--host b.example: named twice; --brokers-per-host puts several"),
        (("--voters", "5"), "--voters 5: more than the 3 hosts, and voters of one host fail"),
        (("--port", "65535"), "--port 65535: the last broker of a host would need port 65537"),
        (("--host", "no host"), "'no host' is no host name"),
        (("--host", "0.0.0.0", "--voters", "4"), "no client can connect to that address"),
        (("--directory", "data"), "--directory data: write it from / on"),
        (("--id", ""), "node.cluster_id"),
        (("--brokers-per-host", "0"), "is not in the range"),
    ],
)
def test_what_was_typed_wrongly(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    """Exit code 2, a line for each problem, and nothing is written."""
    result = configure(tmp_path / "into", *words)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert not (tmp_path / "into").exists()


def test_an_even_number_of_voters(tmp_path: Path) -> None:
    """Warned of as by a node, and written."""
    result = configure(tmp_path, "--voters", "2")
    assert result.exit_code == 0
    assert result.stderr.count("2 voters, an even number") == 1
    assert [node.is_voter for node in written(tmp_path)] == [True, True, False]
