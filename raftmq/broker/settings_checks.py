"""Whether the values of one node's settings go together, and which of them are unwise.

Pure, and resolves nothing: two names of one machine are for the operating system to find out.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from itertools import combinations
from typing import TYPE_CHECKING

from raftmq.broker.node_keys import BROKERS
from raftmq.metadata.raft.messages import VOTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from raftmq.broker.settings_reader import FoundListener
    from raftmq.model import Address


def name_problems(names: Sequence[str]) -> Iterator[str]:
    """Of the names of listeners."""
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
    """What cannot be listened on together, and what nobody can call."""
    yield from _listening_problems(node_id, voters, listeners)
    yield from _voter_problems(node_id, voters)
    for found in listeners:
        if found.advertised and is_wildcard(found.advertised.host):
            yield (
                f"{found.where}.advertised = {found.advertised}: nobody can call that address, say"
                " where others reach this node"
            )


def session_problems(shortest_ms: int, longest_ms: int) -> Iterator[str]:
    """Of what members of consumer groups may ask for."""
    if shortest_ms > longest_ms:
        yield (
            f"groups.session_timeout_ms_min = {shortest_ms}: above groups.session_timeout_ms_max ="
            f" {longest_ms}, so that no session would do"
        )


def voter_warnings(count: int) -> Iterator[str]:
    if count == 1:
        yield (
            "quorum.voters: a single voter: while it is down nothing can change, and with its disk"
            " the cluster is lost; three are safe"
        )
    elif count % 2 == 0:
        yield (
            f"quorum.voters: {count} voters, an even number: {_tolerated(count)} may be down, which"
            f" {count - 1} would allow as well; take {count - 1} or {count + 1}"
        )


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _tolerated(count: int) -> str:
    """How many may be down."""
    most = (count - 1) // 2
    return str(most) if most else "none"


def _listening_problems(
    node_id: int | None, voters: Mapping[int, Address | None], listeners: Sequence[FoundListener]
) -> Iterator[str]:
    places = {f"{one.where}.bind": one.bind for one in listeners if one.bind}
    own = voters.get(node_id) if node_id is not None else None
    if own is not None:
        places[f"quorum.voters.{node_id}"] = own
    for (one, address), (other, its_address) in combinations(places.items(), 2):
        if collide(address, its_address):
            yield (
                f"{other} = {its_address}: {one} = {address} listens there already, give each a"
                " port of its own"
            )


def collide(one: Address, other: Address) -> bool:
    """Whether one process cannot listen on both."""
    if one.port != other.port:
        return False
    return one.host == other.host or _covers(one.host, other.host) or _covers(other.host, one.host)


def _covers(wildcard: str, host: str) -> bool:
    if not is_wildcard(wildcard):
        return False
    try:
        return ip_address(wildcard).version == ip_address(host).version
    except ValueError:  # a name, of some address of this machine
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
        if voter != node_id and is_wildcard(address.host):
            yield (
                f"quorum.voters.{voter} = {address}: nobody can call that address, say where voter"
                f" {voter} is reached"
            )
