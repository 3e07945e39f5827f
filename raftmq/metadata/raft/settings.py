"""`QuorumSettings` of a node (directory, cluster id, voters, addresses) and their validation.

Owns every check of the settings that needs neither disk nor network. Reads and writes nothing: a
node with invalid settings is refused before it leaves a trace, so that it starts once they are
corrected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from raftmq.errors import InvalidConfig
from raftmq.metadata.raft.engine.timing import QuorumLimits, Timing
from raftmq.metadata.raft.net.connection import AddressT
from raftmq.model import PORT_MAX, Address
from raftmq.wire.messages.cluster import VOTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator


# -- Settings -------------------------------------------------------------------------------------


NODE_ID_MAX = (1 << 31) - 1  # a broker id is a signed 32-bit number in Kafka's protocol
CLUSTER_ID_LENGTH_MAX = 255  # the limit of `messages.Name`, in which every Hello carries it
BRIEF_LENGTH_MAX = 60  # of a wrong value in an error text: the text must stay one line


@dataclass(frozen=True)
class QuorumSettings(Generic[AddressT]):
    """Who this node is, and who votes.

    Attributes:
        directory: this node's alone; made where there is none.
        cluster_id: printable, 1 to 255 characters, for ever.
        node_id: one of the voters' ids for a voter, another one for an observer.
        voters: the address of each voter by node id, this one included if it is one. Ids are for
            ever; addresses may change from one start to the next.
        is_replacement: whether this voter, if its directory is empty, may take the seat of a disk
            that is lost for good. Says nothing of a directory that is not empty.
        sync: False keeps the journal in the page cache; for benchmarks only.
    """

    directory: Path
    cluster_id: str
    node_id: int
    voters: Mapping[int, AddressT]
    timing: Timing = field(default_factory=Timing)
    limits: QuorumLimits = field(default_factory=QuorumLimits)
    is_replacement: bool = False
    sync: bool = True


def check_settings(settings: QuorumSettings[Any], *, is_voter: bool) -> None:
    """
    Raises:
        InvalidConfig: with one line for each problem, not only for the first.
    """
    problems = [
        *_directory_problems(settings.directory),
        *_cluster_id_problems(settings.cluster_id),
        *_node_id_problems("node_id", settings.node_id),
        *_voters_problems(settings.voters),
        *_kind_problems(settings),
    ]
    if problems:  # all at once, so that an operator corrects them together
        raise InvalidConfig(problems)
    # The same settings serve voters and observers: the id decides which of them this node is.
    if (settings.node_id in settings.voters) != is_voter:
        raise InvalidConfig([_role_problem(settings, is_voter=is_voter)])


def brief(value: object) -> str:
    """A wrong value, shortened for an error text."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= BRIEF_LENGTH_MAX else f"{text[: BRIEF_LENGTH_MAX - 3]}..."


def _directory_problems(directory: object) -> Iterator[str]:
    if not isinstance(directory, Path):
        yield f"directory = {brief(directory)}: expected a pathlib.Path"


def _cluster_id_problems(cluster_id: object) -> Iterator[str]:
    """Operators read the id in logs and tables: two different ids must look different."""
    if not isinstance(cluster_id, str):
        yield f"cluster_id = {brief(cluster_id)}: expected a string"
    elif not 1 <= len(cluster_id) <= CLUSTER_ID_LENGTH_MAX:
        length = f"{len(cluster_id)} characters, allowed 1 to {CLUSTER_ID_LENGTH_MAX}"
        yield f"cluster_id = {brief(cluster_id)}: {length}"
    elif not cluster_id.isprintable() or cluster_id != cluster_id.strip():
        what = "expected printable characters, and no space at either end"
        yield f"cluster_id = {brief(cluster_id)}: {what}"


def _node_id_problems(name: str, node_id: object) -> Iterator[str]:
    is_number = isinstance(node_id, int) and not isinstance(node_id, bool)
    if not (is_number and 0 <= node_id <= NODE_ID_MAX):  # type: ignore[operator]  # is_number
        yield f"{name} = {brief(node_id)}: expected a whole number from 0 to {NODE_ID_MAX}"


def _voters_problems(voters: object) -> Iterator[str]:
    if not isinstance(voters, Mapping):
        yield f"voters = {brief(voters)}: expected a mapping from node id to address"
        return
    if not 1 <= len(voters) <= VOTERS_MAX:
        yield f"voters: {len(voters)} of them, allowed 1 to {VOTERS_MAX}; three or five are usual"
        return
    for voter, address in voters.items():
        yield from _node_id_problems("voters: id", voter)
        yield from _address_problems(f"voters: address of {brief(voter)}", address)
    for (one, address), (other, its_address) in combinations(voters.items(), 2):
        if address == its_address:  # both would dial the same node
            yield (
                f"voters: {brief(one)} and {brief(other)} have the same address {brief(address)}:"
                " each listens at its own"
            )


def _address_problems(name: str, address: object) -> Iterator[str]:
    """A builtin type is a mistake; other types are checked by the network that defines them."""
    if type(address).__module__ == "builtins":
        yield f"{name} = {brief(address)}: expected a raftmq.model.Address(host, port)"
    elif isinstance(address, Address):
        host, port = address
        if not (isinstance(host, str) and host):
            yield f"{name}: host = {brief(host)}: expected a host name or an IP address"
        is_number = isinstance(port, int) and not isinstance(port, bool)
        if not (is_number and 1 <= port <= PORT_MAX):
            what = f"expected a whole number from 1 to {PORT_MAX}"
            yield f"{name}: port = {brief(port)}: {what}"


def _kind_problems(settings: QuorumSettings[Any]) -> Iterator[str]:
    kinds = {"timing": Timing, "limits": QuorumLimits, "is_replacement": bool, "sync": bool}
    for name, kind in kinds.items():
        value = getattr(settings, name)
        if not isinstance(value, kind):
            yield f"{name} = {brief(value)}: expected a {kind.__name__}"


def _role_problem(settings: QuorumSettings[Any], *, is_voter: bool) -> str:
    node_id, voters = settings.node_id, brief(sorted(settings.voters))
    if is_voter:
        return (
            f"node_id = {node_id}: not one of the voters {voters}: give it its id of these, or"
            " open an observer"
        )
    return (
        f"node_id = {node_id}: one of the voters {voters}: an observer needs an id of its own,"
        " or open a voter"
    )
