"""Settings of a node: reading the TOML file, checking it, and `BrokerSettings`, the result.

Owns `BrokerSettings` and its TOML form; docs/CONFIGURATION.md lists every key. All problems of a
file are reported at once, each with its key. (Kafka: KafkaConfig)

    [node]                      [quorum.voters]             [[listeners]]
    id = 1                      1 = "10.0.0.1:9293"         name = "clients"
    cluster_id = "orders"       2 = "10.0.0.2:9293"         bind = "0.0.0.0:9292"
    directory = "/var/raftmq"   3 = "10.0.0.3:9293"         advertised = "10.0.0.1:9292"
"""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.broker.groups.phases import CoordinatorSettings, GroupSettings
from raftmq.broker.node_config_keys import (
    ADVERTISED,
    BIND,
    CLOCK_DIFFERENCE,
    CLUSTER_ID,
    DIRECTORY,
    LIMIT_KEYS,
    LISTENER_NAME,
    LOG_FORMAT,
    LOG_KEYS,
    LOG_LEVEL,
    NODE_ID,
    NODE_KEYS,
    OFFSETS_RETENTION,
    RACK,
    REASSIGNMENT_BYTES_PER_SECOND,
    REASSIGNMENT_RATE,
    REBALANCE_DELAY,
    REPLACE,
    SESSION_TIMEOUT_MAX,
    SESSION_TIMEOUT_MIN,
    SIZE_MAX,
    TRANSACTION_TIMEOUT_MAX,
    TRANSACTION_TIMEOUT_MS_MAX,
    VOTER,
    Kind,
    NodeKey,
    closest,
    convert,
    known_below,
)
from raftmq.broker.node_config_keys import BROKERS as BROKERS  # users of settings need it, too
from raftmq.errors import InvalidConfig
from raftmq.metadata.clocks import DIFFERENCE_MS_MAX
from raftmq.metadata.raft.engine.timing import Timing
from raftmq.metadata.raft.settings import brief
from raftmq.rpc.context import Listener
from raftmq.rpc.protocol import RpcLimits, shared_hosts
from raftmq.wire.messages.cluster import VOTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.model import Address


# -- Settings reader ------------------------------------------------------------------------------
# From parsed TOML to checked values; goes on after each problem so that all are reported at once.
#
# Owns the shape of a settings file: sections, voters by id, a list of listeners. What a key accepts
# is in `node_config_keys`, whether values fit together in the checks below. Reads no file.


# Sections in which every key has a default.
OPTIONAL = ("groups", "transactions", "reassignment", "limits", "log")


class SettingOrigin(NamedTuple):
    """Source and text of a value that is not from the file: environment or command line."""

    source: str
    text: str


class FoundListener(NamedTuple):
    """`where` names it in messages; None stands for a value that is wrong or missing."""

    where: str
    name: str | None
    bind: Address | None
    advertised: Address | None


class SettingsReader:
    """Attributes:
    problems: one line for each, with its key.
    """

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, SettingOrigin]) -> None:
        self._values, self._origins = values, origins
        self.problems: list[str] = []
        # Keys that are there under a misspelt name: not to be reported as missing as well.
        self._meant: set[str] = set()
        self._check_sections()

    def node(self, key: NodeKey) -> Any:  # noqa: ANN401  # as the key is
        """The value of a key of [node]; None if missing or wrong."""
        return self._read(key, self._section("node"))

    def check_names(self) -> None:
        """Report unknown keys of these sections; before any key is read, to fill `_meant`."""
        for section in ("node", *OPTIONAL):
            self._check_names(f"{section}.", self._section(section), known_below(section))

    def optional(self, key: NodeKey) -> int:
        """The value of a key of an optional section; its default if missing or wrong."""
        value: int | None = self._read(key, self._section(key.name.partition(".")[0]))
        return int(key.default) if value is None else value

    def choice(self, key: NodeKey) -> str:
        """The same for a word of several."""
        return self._read(key, self._section(key.name.partition(".")[0])) or key.default

    def replace(self) -> bool:
        """Whether this node takes the place of a voter whose disk is lost."""
        return bool(self._read(REPLACE, self._section("quorum")))

    def voters(self) -> dict[int, Address | None]:
        """Addresses by id; None stands for a wrong address."""
        quorum = self._section("quorum")
        self._check_names("quorum.", quorum, known_below("quorum"))
        table = quorum.get("voters")
        if not isinstance(table, dict) or not table:  # a single value, or an empty table
            # A missing or misspelt section was reported already.
            if "quorum" in self._values and "quorum.voters" not in self._meant:
                self.problems.append(
                    '[quorum.voters]: no voters, expected a line like 1 = "host:port" for each'
                )
            return {}
        found = {}
        for text in table:
            name = f"quorum.voters.{text}"
            # TOML keys are texts: `01` or `1.0` must not become a second spelling of 1.
            if is_id(text):
                found[int(text)] = self._read(VOTER, table, name)
            else:
                self.problems.append(f"{name}: {text!r} is no node id, expected {NODE_ID.allowed}")
        return found

    def listeners(self) -> list[FoundListener]:
        tables = self._values.get("listeners")
        # Reported as a misspelt section; one problem, one line.
        if tables is None and "listeners" in self._meant:
            return []
        # [listeners] instead of [[listeners]], or no listener at all.
        if not isinstance(tables, list) or not tables:
            is_there = tables is not None and tables != []
            what = (
                "expected [[listeners]], once for each" if is_there else "this section is missing"
            )
            self.problems.append(f"[[listeners]]: {what}")
            return []
        return [self._listener(at, table) for at, table in enumerate(tables)]

    # One piece

    def _listener(self, at: int, table: object) -> FoundListener:
        if not isinstance(table, dict):  # [listeners] with keys, where a list is expected
            self.problems.append(f"listeners[{at}] = {brief(table)}: expected [[listeners]]")
            return FoundListener(f"listeners[{at}]", None, None, None)
        given = table.get("name")
        # Messages name a listener by its name; by its position while that is not known.
        where = f"listeners.{given}" if isinstance(given, str) and given else f"listeners[{at}]"
        self._check_names(f"{where}.", table, known_below("listeners.<name>"))
        name, bind, advertised = (
            self._read(key, table, f"{where}.{key.last_name}")
            for key in (LISTENER_NAME, BIND, ADVERTISED)
        )
        is_said = "advertised" in table
        # A wrong `advertised` stays None: it was reported, and `bind` is not what was meant.
        return FoundListener(where, name, bind, advertised if is_said else bind)

    def _read(self, key: NodeKey, table: Mapping[str, Any], name: str = "") -> Any:  # noqa: ANN401  # as the key is
        name = name or key.name
        last_name = name.rpartition(".")[2]
        if last_name not in table:  # a default, a misspelt key that was reported, or a missing one
            # A default is applied by the caller; a key that is required is reported once.
            if not key.default and name not in self._meant and self._is_section_there(name):
                self.problems.append(f"{name}: missing, expected {key.allowed}")
            return None
        value, origin = table[last_name], self._origins.get(name)
        # The command line parses values as TOML: node.rack=3 arrives as a number, and is a text.
        if origin and key.kind not in (Kind.NUMBER, Kind.SWITCH):
            value = value if isinstance(value, str) else origin.text
        try:
            return convert(key, value)
        except ValueError as error:  # collected, so that all problems are reported at once
            source = f" from {origin.source}" if origin else ""
            self.problems.append(f"{name} = {brief(value)}{source}: {error}")
            return None

    # Sections and names

    def _check_sections(self) -> None:
        known = known_below("")
        for name, value in self._values.items():
            if name not in known:
                self._unknown_section(name, value, known)
        for name in ("node", "quorum", *OPTIONAL):
            value = self._values.get(name, {})
            if not isinstance(value, dict):  # `node = 1` instead of [node]
                self.problems.append(f"{name} = {brief(value)}: expected a section [{name}]")
            # Optional sections may be missing; a misspelt one was reported already.
            elif name not in OPTIONAL and name not in self._values and name not in self._meant:
                self.problems.append(f"[{name}]: this section is missing")

    def _unknown_section(self, name: str, value: object, known: list[str]) -> None:
        # A table or list is a misspelt section; a single value a key outside of its section.
        if isinstance(value, (dict, list)):
            meant = closest(name, known)
            self._meant.add(meant)
            hint = f", did you mean [{meant}]?" if meant else ", known are " + ", ".join(known)
            self.problems.append(f"[{name}]: unknown section{hint}")
            return
        homes = [key.name for key in NODE_KEYS if key.last_name == name]
        hint = f", did you mean {homes[0]}, in its section?" if homes else ""
        self._meant.update(homes)
        self.problems.append(f"{name}: unknown, and in no section{hint}")

    def _section(self, name: str) -> Mapping[str, Any]:
        found = self._values.get(name)
        return found if isinstance(found, dict) else {}

    def _is_section_there(self, name: str) -> bool:
        """Otherwise the missing section was reported, and its keys need no lines of their own."""
        section = name.partition(".")[0]
        return section != "node" or isinstance(self._values.get(section), dict)

    def _check_names(self, where: str, table: Mapping[str, Any], known: list[str]) -> None:
        for name in table:
            if name not in known:
                meant = closest(name, known)
                hint = f", did you mean {where}{meant}?" if meant else ""
                self._meant.add(f"{where}{meant}")
                self.problems.append(f"{where}{name}: unknown{hint}")


def is_id(text: str) -> bool:
    """Whether a key of [quorum.voters] is a node id in its one spelling: no signs, no zeros."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(NODE_ID.maximum))
    return is_number and str(int(text)) == text and int(text) <= NODE_ID.maximum


# -- Settings checks ------------------------------------------------------------------------------
# Whether the values of one node fit together, and which of them are unwise.
#
# Pure, resolves no names: that two names are one machine is for the operating system to find out.


def name_problems(names: Sequence[str]) -> Iterator[str]:
    """Problems with the names of listeners."""
    for name, count in Counter(names).items():
        if count > 1:
            yield f"listeners: names must differ, {name!r} is there {count} times"
    if BROKERS not in names:
        yield (
            f'listeners: exactly one must be named "{BROKERS}", for the other brokers, here are'
            f" {', '.join(names)}"
        )


def address_problems(
    node_id: int | None, voters: Mapping[int, Address | None], listeners: Sequence[FoundListener]
) -> Iterator[str]:
    """Addresses on which one process cannot listen together, or that others cannot connect to."""
    yield from _listening_problems(node_id, voters, listeners)
    yield from _voter_problems(node_id, voters)
    for found in listeners:
        # 0.0.0.0 is fine to listen on and no destination.
        if found.advertised and is_wildcard(found.advertised.host):
            yield (
                f"{found.where}.advertised = {found.advertised}: no client can connect to that"
                " address, say where others reach this node"
            )


def session_problems(shortest_ms: int, longest_ms: int) -> Iterator[str]:
    """Problems with the session timeouts that members of consumer groups may ask for."""
    if shortest_ms > longest_ms:
        yield (
            f"groups.session_timeout_ms_min = {shortest_ms}: above groups.session_timeout_ms_max ="
            f" {longest_ms}, so that no session would do"
        )


def voter_warnings(voters: Mapping[int, Address]) -> Iterator[str]:
    count = len(voters)
    if count == 1:  # works, and every failure of its disk is final
        yield (
            "quorum.voters: a single voter: while it is down nothing can change, and with its disk"
            " the cluster is lost; three are safe"
        )
    elif count % 2 == 0:
        yield (
            f"quorum.voters: {count} voters, an even number: {_tolerated(count)} may be down, which"
            f" {count - 1} would allow as well; take {count - 1} or {count + 1}"
        )
    for host, together in shared_hosts(voters).items():
        yield (
            f"quorum.voters: {' and '.join(map(str, together))} are on one host, {host}, and fail"
            " together; give each voter a host of its own"
        )


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a machine, as 0.0.0.0 and :: do."""
    try:
        return ip_address(host).is_unspecified
    # A host name.
    except ValueError:
        return False


def _tolerated(count: int) -> str:
    """How many voters may be down, as text: less than half."""
    most = (count - 1) // 2
    return str(most) if most else "none"


def _listening_problems(
    node_id: int | None, voters: Mapping[int, Address | None], listeners: Sequence[FoundListener]
) -> Iterator[str]:
    places = {f"{one.where}.bind": one.bind for one in listeners if one.bind}
    # The own voter listens at its address too, if this node is a voter.
    own = voters.get(node_id) if node_id is not None else None
    if own is not None:  # this node is a voter and listens at that address too
        places[f"quorum.voters.{node_id}"] = own
    for (one, address), (other, its_address) in combinations(places.items(), 2):
        if collide(address, its_address):
            yield (
                f"{other} = {its_address}: {one} = {address} listens there already, give each a"
                " port of its own"
            )


def collide(one: Address, other: Address) -> bool:
    """Whether one process cannot listen on both addresses."""
    if one.port != other.port:
        return False
    # A wildcard takes the port on every address of its family.
    return one.host == other.host or _covers(one.host, other.host) or _covers(other.host, one.host)


def _covers(wildcard: str, host: str) -> bool:
    if not is_wildcard(wildcard):
        return False
    try:
        return ip_address(wildcard).version == ip_address(host).version
    except ValueError:  # a host name: of some address of this machine, so assume the worst
        return True


def _voter_problems(node_id: int | None, voters: Mapping[int, Address | None]) -> Iterator[str]:
    if len(voters) > VOTERS_MAX:
        yield f"quorum.voters: {len(voters)} of them, allowed are {VOTERS_MAX}; take three or five"
    known = {voter: address for voter, address in voters.items() if address}
    for (one, address), (other, its_address) in combinations(known.items(), 2):
        if address == its_address:
            yield (
                f"quorum.voters.{other} = {its_address}: that is voter {one}'s address, each has"
                " its own"
            )
    for voter, address in known.items():
        # The own address may be a wildcard, others' may not.
        if voter != node_id and is_wildcard(address.host):
            yield (
                f"quorum.voters.{voter} = {address}: no client can connect to that address,"
                f" say where voter {voter} is reached"
            )


# -- Settings -------------------------------------------------------------------------------------


CLIENTS = "clients"  # the usual name of the other listener
_RULES = {
    key.last_name: key
    for key in (REBALANCE_DELAY, SESSION_TIMEOUT_MIN, SESSION_TIMEOUT_MAX, SIZE_MAX)
}


@dataclass(frozen=True)
class ListenerSettings:
    """Where to listen, and which address others get; the two differ behind NAT or in containers."""

    name: str
    bind: Address
    advertised: Address

    @property
    def is_for_brokers(self) -> bool:
        return self.name == BROKERS


@dataclass(frozen=True)
class LogSettings:
    """Words as the keys take them; an embedding program configures `logging` itself."""

    level: str = LOG_LEVEL.default
    format: str = LOG_FORMAT.default


@dataclass(frozen=True)
class BrokerSettings:
    """Attributes:
    directory: used by this node alone.
    voters: of the quorum, by node id; a node that is not among them is an observer.
    listeners: one is named "brokers", for the other nodes; the others are for clients.
    rack: replicas of one partition are spread over racks.
    clock_difference_ms_max: by how much the clocks of brokers may differ and still agree.
    timing: of the quorum; tests shorten it, the settings file cannot.
    groups: limits of consumer groups.
    transaction_timeout_ms_max: the longest that a producer may ask for.
    reassignment_bytes_per_second: how fast replicas that are added are copied; 0: no limit.
    is_replacement: with an empty directory, take the place of a voter whose disk is lost for
        good (decision 0028).
    limits: of its connections.
    log: what `raftmq broker` writes to stderr, and how.
    """

    directory: Path
    cluster_id: str
    node_id: int
    voters: Mapping[int, Address]
    listeners: tuple[ListenerSettings, ...]
    rack: str | None = None
    timing: Timing = field(default_factory=Timing)
    groups: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    transaction_timeout_ms_max: int = TRANSACTION_TIMEOUT_MS_MAX
    reassignment_bytes_per_second: int = REASSIGNMENT_BYTES_PER_SECOND
    clock_difference_ms_max: int = DIFFERENCE_MS_MAX
    is_replacement: bool = False
    limits: RpcLimits = field(default_factory=RpcLimits)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        problems = list(name_problems([one.name for one in self.listeners]))
        if problems:
            raise InvalidConfig(problems)

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    def listener(self, one: ListenerSettings) -> Listener:
        """A listener as the RPC server needs it: name, purpose, and where clients go instead."""
        others = [
            f"listener {other.name!r} at {other.advertised}"
            for other in self.listeners
            if one.is_for_brokers and not other.is_for_brokers
        ]
        return Listener(one.name, one.is_for_brokers, " or ".join(others))

    @property
    def warnings(self) -> list[str]:
        """Settings that work and are unwise: one line each, with the key."""
        return list(voter_warnings(self.voters))

    def key_of(self, address: Address) -> str:
        """The setting that makes this node listen there, for errors such as "address in use"."""
        for one in self.listeners:
            if one.bind == address:
                return f"listeners.{one.name}.bind"
        return f"quorum.voters.{self.node_id}"


def read_settings(path: Path) -> dict[str, Any]:
    """The parsed file, unchecked. Raises InvalidConfig."""
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
    values: Mapping[str, Any], origins: Mapping[str, SettingOrigin] | None = None
) -> BrokerSettings:
    """
    Args:
        origins: by dotted key, the source of a value not from the file.

    Raises:
        InvalidConfig: with one line for each problem.
    """
    reader = SettingsReader(values, origins or {})
    reader.check_names()
    keys = {"directory": DIRECTORY, "cluster_id": CLUSTER_ID, "node_id": NODE_ID, "rack": RACK}
    found = {name: reader.node(key) for name, key in keys.items()}
    difference_ms = reader.node(CLOCK_DIFFERENCE)
    voters, listeners = reader.voters(), reader.listeners()
    rules = {name: reader.optional(key) for name, key in _RULES.items()}
    retention_ms = reader.optional(OFFSETS_RETENTION)
    timeout_ms = reader.optional(TRANSACTION_TIMEOUT_MAX)
    rate = reader.optional(REASSIGNMENT_RATE)
    limits = {key.last_name: reader.optional(key) for key in LIMIT_KEYS}
    log = LogSettings(**{key.last_name: reader.choice(key) for key in LOG_KEYS})
    is_replacement = reader.replace()
    problems = [*reader.problems, *address_problems(found["node_id"], voters, listeners)]
    problems += session_problems(rules["session_timeout_ms_min"], rules["session_timeout_ms_max"])
    # With a name missing, "exactly one must be named brokers" would only repeat that.
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
        transaction_timeout_ms_max=timeout_ms,
        reassignment_bytes_per_second=rate,
        is_replacement=is_replacement,
        clock_difference_ms_max=difference_ms or DIFFERENCE_MS_MAX,
        limits=RpcLimits(**limits),
        log=log,
    )


def _settings_of(found: FoundListener) -> ListenerSettings:
    name, bind, advertised = found.name, found.bind, found.advertised
    assert name, "else it was a problem"
    assert bind, "else it was a problem"
    assert advertised, "else it was a problem"
    return ListenerSettings(name, bind, advertised)
