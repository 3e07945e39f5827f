"""What a node of the cluster is told about itself: the file, and whether that can be.

Owns `BrokerSettings` and its TOML form; docs/CONFIGURATION.md lists every key. Every problem of a
file is reported at once, each with its key.

    [node]                      [quorum.voters]             [[listeners]]
    id = 1                      1 = "10.0.0.1:9293"         name = "clients"
    cluster_id = "orders"       2 = "10.0.0.2:9293"         bind = "0.0.0.0:9292"
    directory = "/var/raftmq"   3 = "10.0.0.3:9293"         advertised = "10.0.0.1:9292"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raftmq.broker.groups.limits import GroupSettings
from raftmq.broker.groups.settings import CoordinatorSettings
from raftmq.broker.node_keys import BROKERS as BROKERS  # users of settings need it, too
from raftmq.broker.node_keys import (
    CLOCK_DIFFERENCE,
    CLUSTER_ID,
    DIRECTORY,
    LIMIT_KEYS,
    NODE_ID,
    OFFSETS_RETENTION,
    RACK,
    REBALANCE_DELAY,
    SESSION_TIMEOUT_MAX,
    SESSION_TIMEOUT_MIN,
    SIZE_MAX,
)
from raftmq.broker.settings_checks import (
    address_problems,
    name_problems,
    session_problems,
    voter_warnings,
)
from raftmq.broker.settings_reader import SettingsReader
from raftmq.errors import InvalidConfig
from raftmq.metadata.clocks import DIFFERENCE_MS_MAX
from raftmq.metadata.raft.timing import Timing
from raftmq.rpc.context import Listener
from raftmq.rpc.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from raftmq.broker.settings_reader import FoundListener, Origin
    from raftmq.model import Address

CLIENTS = "clients"  # the usual name of the other listener
_RULES = {
    key.last_name: key
    for key in (REBALANCE_DELAY, SESSION_TIMEOUT_MIN, SESSION_TIMEOUT_MAX, SIZE_MAX)
}


@dataclass(frozen=True)
class ListenerSettings:
    """Where to listen, and what others are told: behind a translation that differs."""

    name: str
    bind: Address
    advertised: Address

    @property
    def is_for_brokers(self) -> bool:
        return self.name == BROKERS


@dataclass(frozen=True)
class BrokerSettings:
    """Attributes:
    directory: this node's alone.
    voters: of the quorum, by node id; a node that is not among them follows it.
    listeners: one is named "brokers", for the other nodes; the rest are for clients.
    rack: replicas of one partition are spread over racks.
    clock_difference_ms_max: by how much the clocks of brokers may differ and still agree.
    timing: of the quorum; tests shorten it, no settings file names it.
    groups: what consumer groups may ask of this broker.
    is_replacement: whether, with an empty directory, it takes the seat of a voter whose disk is
        lost for good.
    limits: of its connections.
    """

    directory: Path
    cluster_id: str
    node_id: int
    voters: Mapping[int, Address]
    listeners: tuple[ListenerSettings, ...]
    rack: str | None = None
    timing: Timing = field(default_factory=Timing)
    groups: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    clock_difference_ms_max: int = DIFFERENCE_MS_MAX
    is_replacement: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        problems = list(name_problems([one.name for one in self.listeners]))
        if problems:
            raise InvalidConfig(problems)

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    def listener(self, one: ListenerSettings) -> Listener:
        """One of the listeners, as those who come there are told of it."""
        others = [
            f"listener {other.name!r} at {other.advertised}"
            for other in self.listeners
            if one.is_for_brokers and not other.is_for_brokers
        ]
        return Listener(one.name, one.is_for_brokers, " or ".join(others))

    @property
    def warnings(self) -> list[str]:
        """What can be, and is unwise: one line each, with its key."""
        return list(voter_warnings(len(self.voters)))

    def key_of(self, address: Address) -> str:
        """Which setting has this node listen there."""
        for one in self.listeners:
            if one.bind == address:
                return f"listeners.{one.name}.bind"
        return f"quorum.voters.{self.node_id}"


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
    except FileNotFoundError as error:
        raise InvalidConfig([f"{path}: there is no such file, name one with --config"]) from error
    except OSError as error:
        raise InvalidConfig([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise InvalidConfig([f"{path}: is no text in UTF-8: {error}"]) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig([f"{path}: is no TOML: {error}"]) from error


def parse_settings(
    values: Mapping[str, Any], origins: Mapping[str, Origin] | None = None
) -> BrokerSettings:
    """See `load_settings`. `origins` tells, by dotted key, what does not come from the file."""
    reader = SettingsReader(values, origins or {})
    reader.check_names()
    keys = {"directory": DIRECTORY, "cluster_id": CLUSTER_ID, "node_id": NODE_ID, "rack": RACK}
    found = {name: reader.node(key) for name, key in keys.items()}
    difference_ms = reader.node(CLOCK_DIFFERENCE)
    voters, listeners = reader.voters(), reader.listeners()
    rules = {name: reader.optional(key) for name, key in _RULES.items()}
    retention_ms = reader.optional(OFFSETS_RETENTION)
    limits = {key.last_name: reader.optional(key) for key in LIMIT_KEYS}
    is_replacement = reader.replace()
    problems = [*reader.problems, *address_problems(found["node_id"], voters, listeners)]
    problems += session_problems(rules["session_timeout_ms_min"], rules["session_timeout_ms_max"])
    names = [one.name for one in listeners if one.name is not None]
    if len(names) == len(listeners) > 0:
        problems += name_problems(names)
    if problems:
        raise InvalidConfig(problems)
    known = {voter: address for voter, address in voters.items() if address is not None}
    return BrokerSettings(
        **found,
        voters=known,
        listeners=tuple(map(_settings_of, listeners)),
        groups=CoordinatorSettings(GroupSettings(**rules), retention_ms),
        is_replacement=is_replacement,
        clock_difference_ms_max=difference_ms or DIFFERENCE_MS_MAX,
        limits=Limits(**limits),
    )


def _settings_of(found: FoundListener) -> ListenerSettings:
    name, bind, advertised = found.name, found.bind, found.advertised
    assert name, "else it was a problem"
    assert bind, "else it was a problem"
    assert advertised, "else it was a problem"
    return ListenerSettings(name, bind, advertised)
