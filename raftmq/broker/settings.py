"""What a node of the cluster is told about itself: the file, and whether that can be.

Owns `BrokerSettings` and its TOML form (README.md shows one in use). Every problem of a file is
reported at once, each with its key.

    [node]                      [quorum.voters]             [[listeners]]
    id = 1                      1 = "10.0.0.1:9293"         name = "clients"
    cluster_id = "orders"       2 = "10.0.0.2:9293"         bind = "0.0.0.0:9292"
    directory = "/var/raftmq"   3 = "10.0.0.3:9293"         advertised = "10.0.0.1:9292"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftmq.errors import InvalidConfig, RaftmqError
from raftmq.model import Address
from raftmq.rpc.address import parse_address
from raftmq.rpc.context import Listener

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CLIENTS, BROKERS = "clients", "brokers"  # names of listeners; brokers talk on the second one


@dataclass(frozen=True)
class ListenerSettings:
    """Where to listen, and what others are told: behind a translation that differs."""

    name: str
    bind: Address
    advertised: Address

    @property
    def listener(self) -> Listener:
        return Listener(self.name, is_for_brokers=self.name == BROKERS)


@dataclass(frozen=True)
class BrokerSettings:
    """Attributes:
    directory: this node's alone.
    voters: of the quorum, by node id; a node that is not among them follows it.
    listeners: one is named "brokers", for the other nodes; the rest are for clients.
    rack: replicas of one partition are spread over racks.
    """

    directory: Path
    cluster_id: str
    node_id: int
    voters: Mapping[int, Address]
    listeners: tuple[ListenerSettings, ...]
    rack: str | None = None

    def __post_init__(self) -> None:
        names = [one.name for one in self.listeners]
        problems = []
        if names.count(BROKERS) != 1:
            problems.append(f'listeners: exactly one must be named "{BROKERS}", here are {names}')
        if len(set(names)) != len(names):
            problems.append(f"listeners: names must differ, here are {names}")
        if problems:
            raise InvalidConfig(problems)

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters


def load_settings(path: Path) -> BrokerSettings:
    """
    Raises:
        InvalidConfig: with one line for each problem.
    """
    return parse_settings(read_settings(path))


def read_settings(path: Path) -> dict[str, Any]:
    """What the file says, not looked at yet. Raises InvalidConfig."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig([f"{path}: {error.strerror}"]) from error
    except ValueError as error:  # no UTF-8, or no TOML
        raise InvalidConfig([f"{path}: {error}"]) from error


def parse_settings(values: Mapping[str, Any]) -> BrokerSettings:
    """See `load_settings`."""
    reader = _Reader()
    reader.check_names("", values, ["node", "quorum", "listeners"])
    node, quorum = reader.table(values, "node"), reader.table(values, "quorum")
    reader.check_names("node.", node, ["id", "cluster_id", "directory", "rack"])
    reader.check_names("quorum.", quorum, ["voters"])
    rack = reader.text(node, "node.rack") if "rack" in node else None
    found: dict[str, Any] = {
        "directory": Path(reader.text(node, "node.directory")),
        "cluster_id": reader.text(node, "node.cluster_id"),
        "node_id": reader.number(node, "node.id"),
        "voters": reader.voters(reader.table(quorum, "voters")),
        "listeners": tuple(reader.listeners(values.get("listeners"))),
        "rack": rack,
    }
    if reader.problems:
        raise InvalidConfig(reader.problems)
    return BrokerSettings(**found)


class _Reader:
    """Reads on after a problem, so that all of them are told at once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def check_names(self, where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
        for name in table:
            if name not in known:
                close = get_close_matches(name, list(known), n=1)
                hint = f", did you mean {where}{close[0]}?" if close else ""
                self.problems.append(f"{where}{name}: unknown{hint}")

    def table(self, values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = values.get(name)
        if isinstance(found, dict):
            return found
        self.problems.append(f"[{name}]: this section is missing")
        return {}

    def text(self, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key.rpartition(".")[2])
        if isinstance(value, str) and value:
            return value
        self.problems.append(f"{key} = {value!r}: expected a text")
        return ""

    def number(self, table: Mapping[str, Any], key: str) -> int:
        value = table.get(key.rpartition(".")[2])
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self.problems.append(f"{key} = {value!r}: expected a whole number")
        return 0

    def address(self, key: str, value: object) -> Address:
        try:
            if isinstance(value, str):
                return parse_address(value)
            self.problems.append(f'{key} = {value!r}: expected "host:port"')
        except RaftmqError as error:
            self.problems.append(f"{key}: {error}")
        return Address("", 0)

    def voters(self, table: Mapping[str, Any]) -> dict[int, Address]:
        voters = {}
        for name, value in table.items():
            if name.isascii() and name.isdecimal():
                voters[int(name)] = self.address(f"quorum.voters.{name}", value)
            else:
                self.problems.append(f"quorum.voters.{name}: expected a node id")
        return voters

    def listeners(self, found: object) -> list[ListenerSettings]:
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            self.problems.append("[[listeners]]: this section is missing")
            return []
        return [self._listener(f"listeners[{at}].", one) for at, one in enumerate(found)]

    def _listener(self, where: str, table: Mapping[str, Any]) -> ListenerSettings:
        self.check_names(where, table, ["name", "bind", "advertised"])
        bind = self.address(f"{where}bind", table.get("bind"))
        advertised = table.get("advertised", table.get("bind"))
        return ListenerSettings(
            self.text(table, f"{where}name"), bind, self.address(f"{where}advertised", advertised)
        )
