"""Every key of a node's settings: its name, type, bounds, default and documentation.

Owns `NODE_KEYS`, the one definition behind the reader of settings files, the environment variables,
the command line and the page docs/CONFIGURATION.md. Pure: a value is converted, or a ValueError
says what was expected.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.broker.groups.phases import OFFSETS_RETENTION_MS, GroupSettings
from raftmq.broker.replication.copy_budget import RATE_MIN
from raftmq.errors import InvalidConfig
from raftmq.metadata.apply.limits import MEMBERS_MAX
from raftmq.metadata.clocks import DIFFERENCE_MS_MAX
from raftmq.metadata.raft.settings import CLUSTER_ID_LENGTH_MAX, NODE_ID_MAX
from raftmq.rpc.protocol import RpcLimits, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BROKERS = "brokers"  # the name of the listener on which brokers talk to each other
NAME_LENGTH_MAX = 32  # of a listener; it stands in log lines and error texts
MILLISECONDS_MAX = (1 << 31) - 1  # requests carry them as signed 32-bit integers: 24 days
OFFSETS_RETENTION_MS_MAX = 100 * 365 * 86_400_000  # a century: for ever, without overflow
CONNECTIONS_MOST = 1_000_000  # catches typing errors; the process has fewer descriptors anyhow
UNHANDLED_BYTES_MOST = 1 << 40  # 1 TiB: catches typing errors
REASSIGNMENT_BYTES_MOST = 1 << 40  # 1 TiB/s: catches typing errors
REASSIGNMENT_BYTES_PER_SECOND = 50_000_000  # leaves most of a 1 Gbit/s network to producers
TRANSACTION_TIMEOUT_MS_MIN = 1_000  # of one: shorter, an election would abort transactions
TRANSACTION_TIMEOUT_MS_MAX = 900_000  # a quarter of an hour that one may hold up readers
RULES = GroupSettings()  # the defaults of the group keys
LIMITS = RpcLimits()  # the defaults of the limit keys
# Fits into log lines and TOML keys without quotes.
_LISTENER_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)


class Kind(Enum):
    """The type of a value; the texts appear in messages and in docs/CONFIGURATION.md."""

    NUMBER = "a whole number"
    TEXT = "a text"
    NAME = "a name"
    PATH = "a path"
    ADDRESS = "host:port"
    SWITCH = "true or false"
    CHOICE = "one of some words"


class NodeKey(NamedTuple):
    """Attributes:
    name: as users type it; `<id>` and `<name>` stand for what they choose.
    maximum: of a number, or of the characters of a text.
    default: the value if the key is left out, as text; "" for a required key.
    minimum: of a number.
    or_zero: 0 is accepted, too.
    choices: the words that are accepted, of a choice.
    """

    name: str
    kind: Kind
    doc: str
    maximum: int = 0
    default: str = ""
    minimum: int = 0
    or_zero: bool = False
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The values that are accepted, in words."""
        if self.kind is Kind.NUMBER:
            zero = "0, or " if self.or_zero else ""
            return f"{zero}a whole number from {self.minimum} to {self.maximum}"
        if self.kind is Kind.TEXT:
            return f"a text of 1 to {self.maximum} printable characters"
        if self.kind is Kind.NAME:
            return f"a name of 1 to {self.maximum} characters a-z, 0-9, _ and -, a letter first"
        if self.kind is Kind.SWITCH:
            return "true or false"
        if self.kind is Kind.CHOICE:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        return "a path" if self.kind is Kind.PATH else '"host:port"'

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]


NODE_ID = NodeKey(
    "node.id",
    Kind.NUMBER,
    "Who this node is, in its cluster, for ever. A node whose id is among `quorum.voters` votes;"
    " any other one follows the quorum, and hosts partitions like the rest.",
    NODE_ID_MAX,
)
CLUSTER_ID = NodeKey(
    "node.cluster_id",
    Kind.TEXT,
    "The same on all nodes of a cluster, for ever. Nodes and clients of another cluster are turned"
    " away.",
    CLUSTER_ID_LENGTH_MAX,
)
DIRECTORY = NodeKey(
    "node.directory",
    Kind.PATH,
    "Where this node keeps everything; this node's alone. Made where there is none; one that holds"
    " other things is refused. A relative path is taken from where the node is started.",
)
RACK = NodeKey(
    "node.rack",
    Kind.TEXT,
    "What fails together: a rack, a room, a zone. Replicas of one partition are spread over racks.",
    CLUSTER_ID_LENGTH_MAX,
    default="none",
)
CLOCK_DIFFERENCE = NodeKey(
    "node.clock_difference_ms_max",
    Kind.NUMBER,
    "By how much the clocks of brokers may differ and still agree. A broker with which not more"
    " than half of all registered brokers agree, itself counted, deletes nothing for its age. The"
    " same on all nodes: the one that leads the quorum compares.",
    MILLISECONDS_MAX,
    default=str(DIFFERENCE_MS_MAX),
    minimum=10_000,
)
VOTER = NodeKey(
    "quorum.voters.<id>",
    Kind.ADDRESS,
    "Where the voter with this id listens for the other nodes: the same on all of them. The set of"
    " ids is for ever; take three or five. A voter listens at its own address, unless its own"
    " settings name another one there, such as `0.0.0.0:9293`.",
)
REPLACE = NodeKey(
    "quorum.replace",
    Kind.SWITCH,
    "Whether this voter, *if its directory is empty*, takes the seat of a disk that is lost for"
    " good: without it, a voter with an empty directory is let into no quorum that has begun. Give"
    " it once, as `-o quorum.replace=true`, and not in the file: a process that is started with a"
    " copy of such a file on an empty directory while this voter is down takes its seat, and the"
    " voter's own disk never comes back.",
    default="false",
)
LISTENER_NAME = NodeKey(
    "listeners.<name>.name",
    Kind.NAME,
    f'Exactly one is named `"{BROKERS}"`, and is for the other brokers: clients are refused there,'
    " unless it is the only one. All others are for clients, which get the addresses of the"
    " listeners that have the same name on the other brokers.",
    NAME_LENGTH_MAX,
)
BIND = NodeKey(
    "listeners.<name>.bind",
    Kind.ADDRESS,
    "Where to listen. `0.0.0.0` stands for every IPv4 address of the machine, `[::]` for every"
    " IPv6 one.",
)
ADVERTISED = NodeKey(
    "listeners.<name>.advertised",
    Kind.ADDRESS,
    "Where others reach this listener: the address that brokers and clients get.",
    default="`bind`",
)
REBALANCE_DELAY = NodeKey(
    "groups.initial_rebalance_delay_ms",
    Kind.NUMBER,
    "How long the first member of an empty consumer group waits for others to join, so that they do"
    " not deal out its partitions once for each of them. The same on all nodes, like all of"
    " `groups`: any of them may coordinate any group.",
    MILLISECONDS_MAX,
    default=str(RULES.initial_rebalance_delay_ms),
)
SESSION_TIMEOUT_MIN = NodeKey(
    "groups.session_timeout_ms_min",
    Kind.NUMBER,
    "The shortest session that a member may ask for. A member that is silent for longer than its"
    " session is put out of its group.",
    MILLISECONDS_MAX,
    default=str(RULES.session_timeout_ms_min),
    minimum=1,
)
SESSION_TIMEOUT_MAX = NodeKey(
    "groups.session_timeout_ms_max",
    Kind.NUMBER,
    "The longest session that a member may ask for: so long its partitions may lie unread when it"
    " has died.",
    MILLISECONDS_MAX,
    default=str(RULES.session_timeout_ms_max),
    minimum=1,
)
SIZE_MAX = NodeKey(
    "groups.size_max",
    Kind.NUMBER,
    "How many members a group may have.",
    MEMBERS_MAX,
    default=str(RULES.size_max),
    minimum=1,
)
OFFSETS_RETENTION = NodeKey(
    "groups.offsets_retention_ms",
    Kind.NUMBER,
    "How long the committed offsets of a group without members are kept.",
    OFFSETS_RETENTION_MS_MAX,
    default=str(OFFSETS_RETENTION_MS),
    minimum=1,
)
TRANSACTION_TIMEOUT_MAX = NodeKey(
    "transactions.timeout_ms_max",
    Kind.NUMBER,
    "The longest timeout that a producer may ask for its transactions: so long one may hold up the"
    " readers of its partitions when its program has died. The same on all nodes: any of them may"
    " coordinate any transaction id.",
    MILLISECONDS_MAX,
    default=str(TRANSACTION_TIMEOUT_MS_MAX),
    minimum=TRANSACTION_TIMEOUT_MS_MIN,
)
REASSIGNMENT_RATE = NodeKey(
    "reassignment.bytes_per_second",
    Kind.NUMBER,
    "How fast this node copies replicas that are added to it, all together; 0: as fast as it can."
    " Replicas in sync, and the acknowledgements that wait for them, are not slowed down by it.",
    REASSIGNMENT_BYTES_MOST,
    default=str(REASSIGNMENT_BYTES_PER_SECOND),
    minimum=RATE_MIN,
    or_zero=True,
)
CONNECTIONS_MAX = NodeKey(
    "limits.connections_max",
    Kind.NUMBER,
    "How many connections clients may have with this node; more are closed at once. It takes fewer"
    " where the process may not have so many descriptors (`LimitNOFILE` of systemd, `ulimit -n`):"
    " what its logs need is kept back, and the node says at its start what is left. Brokers have"
    " places apart, also where one listener serves both.",
    CONNECTIONS_MOST,
    default=str(LIMITS.connections_max),
    minimum=1,
)
UNHANDLED_BYTES_MAX = NodeKey(
    "limits.unhandled_bytes_max",
    Kind.NUMBER,
    "How many bytes of requests that have not arrived whole, or are not handled yet, this node"
    " holds for all clients together, and as many for all brokers. Beyond it one large request at a"
    " time is read, in turn, until there is room; small ones, up to 64 KiB, go on.",
    UNHANDLED_BYTES_MOST,
    default=str(LIMITS.unhandled_bytes_max),
    minimum=LIMITS.frame_bytes_max,
)
LOG_LEVEL = NodeKey(
    "log.level",
    Kind.CHOICE,
    "What goes to the log, on stderr: lines of this level and above. `info` has a line for each"
    " change of state and none for records; `debug` is for developers.",
    default="info",
    choices=("debug", "info", "warning", "error"),
)
LOG_FORMAT = NodeKey(
    "log.format",
    Kind.CHOICE,
    "`text`: time, level, logger and message, with `key=value` in it; `json`: an object for each"
    " line with time (UTC), level, logger, message, and traceback where there is one. Warnings of"
    " settings and limits, which come before the log begins, and the line with which a node fails"
    " stay text.",
    default="text",
    choices=("text", "json"),
)
LOG_KEYS = (LOG_LEVEL, LOG_FORMAT)
LIMIT_KEYS = (CONNECTIONS_MAX, UNHANDLED_BYTES_MAX)
GROUP_KEYS = (
    REBALANCE_DELAY,
    SESSION_TIMEOUT_MIN,
    SESSION_TIMEOUT_MAX,
    SIZE_MAX,
    OFFSETS_RETENTION,
)
NODE_KEYS = (
    NODE_ID,
    CLUSTER_ID,
    DIRECTORY,
    RACK,
    CLOCK_DIFFERENCE,
    VOTER,
    REPLACE,
    LISTENER_NAME,
    BIND,
    ADVERTISED,
    *GROUP_KEYS,
    TRANSACTION_TIMEOUT_MAX,
    REASSIGNMENT_RATE,
    *LIMIT_KEYS,
    *LOG_KEYS,
)


def known_below(section: str) -> list[str]:
    """The names that may stand in a section: `node` knows `id` and others, "" the sections."""
    start = f"{section}." if section else ""
    below = (key.name.removeprefix(start) for key in NODE_KEYS if key.name.startswith(start))
    return list(dict.fromkeys(name.partition(".")[0] for name in below))


def find_key(name: str) -> NodeKey | None:
    """The key that a dotted name means, with any text in place of `<id>` or `<name>`."""
    return next((key for key in NODE_KEYS if _filled(key, name) == name), None)


def closest(name: str, known: Iterable[str]) -> str:
    """Which known name a misspelt one may mean; "" for none."""
    return next(iter(get_close_matches(name, list(known), n=1)), "")


def closest_key(name: str) -> str:
    """Which dotted name a misspelt one may mean; "" for none."""
    return closest(name, [_filled(key, name) for key in NODE_KEYS])


def _filled(key: NodeKey, name: str) -> str:
    """The key's name, with `<id>` and `<name>` replaced by what stands there in `name`."""
    parts, given = key.name.split("."), name.split(".")
    for at, part in enumerate(parts):
        if part.startswith("<") and at < len(given) and given[at]:  # a place that users fill in
            parts[at] = given[at]
    return ".".join(parts)


def convert(key: NodeKey, value: object) -> Any:  # noqa: ANN401  # as the key is
    """The value as the type that its key stands for.

    Raises:
        ValueError: what was expected.
    """
    return _CONVERT[key.kind](key, value)


def _number(key: NodeKey, value: object) -> int:
    # bool is a subclass of int: `id = true` must not become 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected {key.allowed}")
    is_zero = value == 0 and key.or_zero
    if not (is_zero or key.minimum <= value <= key.maximum):
        raise ValueError(f"expected {key.allowed}")
    return value


def _text(key: NodeKey, value: object) -> str:
    """Texts are compared by people in messages: two that differ must look different."""
    if not isinstance(value, str):
        raise ValueError(f"expected {key.allowed}, in quotes")
    if not 1 <= len(value) <= key.maximum:
        raise ValueError(f"expected {key.allowed}")
    # Control characters and outer spaces are invisible.
    if not value.isprintable() or value != value.strip():
        raise ValueError("expected printable characters, and no space at either end")
    return value


def _name(key: NodeKey, value: object) -> str:
    if isinstance(value, str) and len(value) <= key.maximum and _LISTENER_NAME.fullmatch(value):
        return value
    raise ValueError(f"expected {key.allowed}")


def _path(_key: NodeKey, value: object) -> Path:
    if not (isinstance(value, str) and value.strip() and value.isprintable()):
        raise ValueError("expected a path")
    # No shell expands it here: a directory named "~" would be made.
    if value.startswith("~"):
        raise ValueError("only shells know what ~ is, write the whole path")
    return Path(value)


def _address(_key: NodeKey, value: object) -> object:
    if not isinstance(value, str):
        raise ValueError('expected "host:port"')
    try:
        return parse_address(value)
    # Only the reason: the reader of settings puts the key before it.
    except InvalidConfig as error:
        raise ValueError(str(error).partition(": ")[2]) from error


def _switch(key: NodeKey, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected {key.allowed}, without quotes")


def _choice(key: NodeKey, value: object) -> str:
    if isinstance(value, str) and value in key.choices:
        return value
    raise ValueError(f"expected {key.allowed}")


_CONVERT: dict[Kind, Callable[[NodeKey, object], object]] = {
    Kind.NUMBER: _number,
    Kind.TEXT: _text,
    Kind.NAME: _name,
    Kind.PATH: _path,
    Kind.ADDRESS: _address,
    Kind.SWITCH: _switch,
    Kind.CHOICE: _choice,
}
