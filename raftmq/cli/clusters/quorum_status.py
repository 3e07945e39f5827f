"""`raftmq quorum status`: ask every voter for its Raft state, and judge whether there is a leader.

Owns the verdict over several answers. Voters listen on ports of their own; where a broker listens
for clients instead, it is asked for the voters' addresses. Voters may disagree, above all during a
network partition: every answer is shown, the newest first.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import trio

from raftmq.cli.clusters.connected import open_client, quiet_logs
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import Row, write_json, write_prose, write_table
from raftmq.cli.terminal.program import as_called
from raftmq.client.routing.cluster import NO_METADATA
from raftmq.errors import RaftmqError, RemoteProtocolError, Unreachable
from raftmq.metadata.raft.net.observer_service import ask_status
from raftmq.metadata.raft.status import ESTABLISHED, VoterView, explain
from raftmq.rpc.context import CLIENTS_ELSEWHERE
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.protocol import format_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.metadata.raft.net.connection import QuorumNetwork
    from raftmq.metadata.raft.status import QuorumStatus
    from raftmq.model import Address

ENTRY_SECONDS_MAX = 3.0  # for a broker to let a client in
BROKER_SECONDS_MAX = 5.0  # for a broker to name the voters; older ones never do
ASK_IT = "ask it for the lags, at"
NOT_TOLD_YET = (
    "its broker has no metadata yet, and cannot name the voters: ask them at their own port, as"
    " quorum.voters in the settings has it"
)
ANSWER_TITLES = ("node", "address", "state", "leader", "term")
LOG_TITLES = (
    "node", "commit", "applied", "last", "journal bytes", "snapshot", "snapshot bytes",
)  # fmt: skip
MEMBER_TITLES = ("seen by", "node", "role", "connected", "standing", "lag")


class VoterAnswer(NamedTuple):
    address: Address
    status: QuorumStatus


class VoterSilence(NamedTuple):
    """Why this address has not answered as a voter."""

    address: Address
    what: str
    is_stranger: bool = False  # another server listens there, perhaps a broker's client listener


class QuorumVerdict(NamedTuple):
    is_healthy: bool
    leader_id: int | None
    term: int
    what: str
    leader_address: str | None = None


def show_status(addresses: Sequence[Address], way_out: str, *, as_json: bool) -> int:
    """Ask, print, and return the exit code; `way_out` is for where nothing answers."""
    quiet_logs()
    try:
        answers, silences = trio.run(partial(ask_everybody, TcpNetwork(), addresses))
    except BaseExceptionGroup as group:
        # The group holds nothing but Ctrl-C.
        if group.split(KeyboardInterrupt)[1] is None:
            raise KeyboardInterrupt from None
        raise
    return report(answers, silences, way_out, as_json=as_json)


async def ask_everybody(
    network: QuorumNetwork[Address], addresses: Sequence[Address]
) -> tuple[list[VoterAnswer], list[VoterSilence]]:
    """The voters at `addresses`, and those that the brokers at `addresses` name."""
    answers, silences = await ask_all(network, addresses)
    strangers = [silence for silence in silences if silence.is_stranger]
    told: dict[Address, VoterSilence] = {}
    for stranger in strangers:
        voters, problem = await _voters_known_at(stranger.address)
        told |= dict.fromkeys(voters, stranger)
        # It was a broker's client listener, which has named the voters: no failure any more.
        silences.remove(stranger)
        if not voters:
            silences.append(stranger._replace(what=problem or stranger.what))
    asked = {answer.address for answer in answers} | {silence.address for silence in silences}
    more, silent = await ask_all(network, [one for one in told if one not in asked])
    silent = [_via(silence, told[silence.address]) for silence in silent]
    # A voter that was reached at two addresses is shown once, at the one that the user gave.
    by_node = {answer.status.node_id: answer for answer in [*more, *answers]}
    return sorted(by_node.values(), key=_rank), [*silences, *silent]


async def _voters_known_at(address: Address) -> tuple[list[Address], str]:
    """Empty if it is no broker, or one of an older version, which does not report voters; and what
    a broker has said that cannot name them.
    """
    with trio.move_on_after(BROKER_SECONDS_MAX):
        try:
            # Gives up within BROKER_SECONDS_MAX, and says why.
            async with open_client([address], ENTRY_SECONDS_MAX) as client:
                return list((await client.admin.describe_cluster()).voters.values()), ""
        except RaftmqError as error:
            if NO_METADATA in str(error):
                return [], f"{address}: {NOT_TOLD_YET}"
            if CLIENTS_ELSEWHERE in str(error):  # the brokers' port
                return [], f"{error}; voters have a port of their own, see quorum.voters"
    return [], ""


def _via(silence: VoterSilence, broker: VoterSilence) -> VoterSilence:
    return silence._replace(
        what=f"{silence.what} (a voter, as the broker at {broker.address} says)"
    )


async def ask_all(
    network: QuorumNetwork[Address], addresses: Sequence[Address]
) -> tuple[list[VoterAnswer], list[VoterSilence]]:
    """Ask all at the same time; the best answer first, failures in the order of `addresses`."""
    found: dict[Address, VoterAnswer | VoterSilence] = {}
    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(_ask, network, address, found)
    answers = [it for it in found.values() if isinstance(it, VoterAnswer)]
    silences = [it for key in addresses if isinstance(it := found[key], VoterSilence)]
    return sorted(answers, key=_rank), silences


async def _ask(
    network: QuorumNetwork[Address],
    address: Address,
    found: dict[Address, VoterAnswer | VoterSilence],
) -> None:
    try:
        stream = await network.dial(address)
    except (OSError, RaftmqError) as error:
        found[address] = VoterSilence(address, str(error))
        return
    try:
        found[address] = VoterAnswer(address, await ask_status(stream))
    except (RemoteProtocolError, Unreachable) as error:
        # Bytes of another protocol: something listens there, but no voter.
        is_stranger = isinstance(error, RemoteProtocolError)
        found[address] = VoterSilence(
            address, f"ask {format_address(address)}: {error}", is_stranger
        )


def _rank(answer: VoterAnswer) -> tuple[bool, int, int, int]:
    """Leaders first, the newest before others, which may not know that they were deposed."""
    status = answer.status
    return status.state != "leader", -status.term, -status.commit_index, status.node_id


# -- the verdict -------------------------------------------------------------------------------


def judge(answers: Sequence[VoterAnswer]) -> QuorumVerdict:
    """Whether there is a leader with a majority, by the best answer.

    1. It is the leader's own: a majority of the voters is connected to it and established.
    2. It is another voter's, which can only say whom it follows.
    """
    status = answers[0].status
    total, node = len(status.voters), status.node_id
    sight = _sight(status)
    # Its own count of voters decides; a follower can only pass on a name.
    if status.state == "leader":
        count = sum(standing == ESTABLISHED for standing in sight.standings.values())
        is_healthy = 2 * count > total
        what = f"node {node} leads in term {status.term} with {count} of {total} voters"
        if not is_healthy:
            what += f", which is no majority: nothing is committed; {explain(sight)}"
        address = format_address(answers[0].address)  # where it was reached
        return QuorumVerdict(is_healthy, node, status.term, what, address)
    connected = {voter.node_id for voter in status.voters if voter.is_connected}
    # A follower keeps the leader's id until its election timeout, also when the connection is lost.
    if status.leader_id not in connected:
        what = f"no leader is known in term {status.term}, says node {node}; {explain(sight)}"
        return QuorumVerdict(False, None, status.term, what)
    what = f"node {status.leader_id} leads in term {status.term}, says node {node}"
    what += f"; {ASK_IT} {status.leader_address or 'its address in quorum.voters'}"
    return QuorumVerdict(True, status.leader_id, status.term, what, status.leader_address)


def _sight(status: QuorumStatus) -> VoterView:
    standings = {v.node_id: v.standing if v.is_connected else None for v in status.voters}
    return VoterView(status.term, standings)


# -- the report --------------------------------------------------------------------------------


def report(
    answers: Sequence[VoterAnswer],
    silences: Sequence[VoterSilence],
    way_out: str,
    *,
    as_json: bool,
) -> int:
    """Print everything; returns the exit code."""
    verdict = judge(answers) if answers else QuorumVerdict(False, None, 0, "no voter answers")
    if as_json:
        write_json(_objects(answers, silences, verdict))
    elif answers:
        write_table(ANSWER_TITLES, map(_answer_row, answers))
        sys.stdout.write("\n")
        write_table(LOG_TITLES, map(_log_row, answers))
        sys.stdout.write("\n")
        write_table(MEMBER_TITLES, (row for answer in answers for row in _member_rows(answer)))
        sys.stdout.write("\n")
        write_prose(verdict.what)
    for silence in silences:
        sys.stderr.write(f"raftmq: {silence.what}\n")
    if not answers:
        # A broker is up there: what it has said names the way out.
        is_there = any(NOT_TOLD_YET in it.what or CLIENTS_ELSEWHERE in it.what for it in silences)
        if not is_there:
            sys.stderr.write(as_called(f"raftmq: {way_out}\n"))
        return ExitCode.UNREACHABLE
    return ExitCode.OK if verdict.is_healthy else ExitCode.UNHEALTHY


def _objects(
    answers: Sequence[VoterAnswer], silences: Sequence[VoterSilence], verdict: QuorumVerdict
) -> Iterator[Row]:
    for address, status in answers:
        row: Row = {"type": "voter", "address": format_address(address)}
        yield row | msgspec.to_builtins(status)
    for address, what, _ in silences:
        yield {"type": "unreachable", "address": format_address(address), "what": what}
    yield {"type": "summary", **verdict._asdict()}


def _answer_row(answer: VoterAnswer) -> tuple[object, ...]:
    status = answer.status
    address = format_address(answer.address)
    return status.node_id, address, status.state, status.leader_id, status.term


def _log_row(answer: VoterAnswer) -> tuple[object, ...]:
    status, snapshot = answer.status, answer.status.snapshot
    return (
        status.node_id,
        status.commit_index,
        status.applied_index,
        status.last_index,
        status.journal_bytes,
        snapshot.index if snapshot else None,
        snapshot.size_bytes if snapshot else None,
    )


def _member_rows(answer: VoterAnswer) -> Iterator[tuple[object, ...]]:
    status = answer.status
    for voter in sorted(status.voters, key=lambda voter: voter.node_id):
        is_there = voter.is_connected
        known = (voter.standing, voter.lag) if is_there else (None, None)
        yield status.node_id, voter.node_id, "voter", "yes" if is_there else "no", *known
    for observer in status.observers:
        yield status.node_id, observer.node_id, "observer", "yes", None, observer.lag
