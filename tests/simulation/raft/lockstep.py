"""Voters without tasks: a test advances their clock, their messages and their turns by hand.

Owns what the driver, the transport and the snapshotter do in a process, in the same order: no
message leaves a voter before its journal is synced, messages are bytes in flight, a disconnected
link drops them. Disks are simulated, so that the power can be cut between any two steps.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from raftmq.metadata.raft.engine.node import RaftNode
from raftmq.metadata.raft.engine.timing import QuorumLimits, Timing
from raftmq.metadata.raft.engine.voter_disks import VoterMembership
from raftmq.metadata.raft.journal.journal import start_journal
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    MessageReader,
    NodeHello,
    Role,
    encode_frame,
)
from raftmq.metadata.raft.snapshot.contents import read_picture, take_picture
from raftmq.metadata.raft.snapshot.store import SnapshotStore
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from raftmq.metadata.raft.engine.replication import Fate
    from raftmq.metadata.raft.net.messages import AnyMessage, Refusal, SnapshotOffer
    from raftmq.metadata.raft.state_machine import StateMachine

DIRECTORY = Path("/voter")
TURN_SECONDS = 0.01


class ListMachine:
    """Every command is kept; its answer is how many there are."""

    def __init__(self) -> None:
        self.items: list[bytes] = []

    def apply(self, index: int, command: bytes) -> object:
        self.items.append(command)
        return len(self.items)

    def picture(self) -> Callable[[], Iterator[bytes]]:
        data = msgspec.msgpack.encode(self.items)
        return lambda: iter([data])

    def read_picture(self, slices: Iterable[bytes]) -> list[bytes]:
        return msgspec.msgpack.decode(b"".join(slices), type=list[bytes])

    def install(self, index: int, decoded: Any) -> None:
        self.items = list(decoded)


class Fates(list[tuple["Fate", object]]):
    """What became of a proposal; called like the callback that it stands for."""

    def __call__(self, fate: Fate, result: object) -> None:
        self.append((fate, result))


class Voter:
    """One run of a voter's directory."""

    def __init__(
        self, world: Lockstep, node_id: int, files: SimulatedFiles, *, is_replacement: bool
    ) -> None:
        self.world, self.node_id, self.files = world, node_id, files
        self.is_replacement = is_replacement
        self.nonce = world.random.randbytes(8)
        self.inbox: deque[tuple[int, AnyMessage]] = deque()
        self.held: list[tuple[int, bytes]] = []
        self.sent: list[tuple[int, AnyMessage]] = []  # for tests to look at, never forgotten
        files.make_directory(DIRECTORY)
        self.store = SnapshotStore(files, DIRECTORY, cluster_id="c")
        self.snapshot = self.store.newest()
        self.journal = start_journal(
            files, DIRECTORY / "journal", cluster_id="c", node_id=node_id,
            new_disk_id=world.random.randbytes(16),
        )  # fmt: skip
        self.machine = world.make_machine()
        self.membership = self._make_membership()
        self.node = self._make_node()

    def _make_membership(self) -> VoterMembership:
        identity = self.journal.identity
        return VoterMembership(
            self.node_id, self.world.ids, disk_id=identity.disk_id, standing=identity.standing
        )

    def _make_node(self) -> RaftNode:
        world, snapshot = self.world, self.snapshot
        node = RaftNode(
            self.membership, self.journal, self.machine,
            applied_index=snapshot.index if snapshot else self.journal.first_index,
            send=self.send, clock=lambda: world.now, random=world.random,
            timing=world.timing, limits=world.limits,
        )  # fmt: skip
        if snapshot:
            picture = read_picture(self.machine, self.store.read(snapshot))
            self.machine.install(snapshot.index, picture.decoded)
            node.begin_after(snapshot.index, snapshot.term, picture)
            node.on_snapshot(snapshot.id, trailing=world.limits.trailing_entries)
        return node

    @property
    def items(self) -> list[bytes]:
        assert isinstance(self.machine, ListMachine)
        return self.machine.items

    @property
    def log(self) -> list[tuple[int, int]]:
        """Index and term of every entry, the base included."""
        return [(index, term) for _, index, term in self.journal[:]]

    # What the transport does

    def hello(self) -> NodeHello:
        identity = self.journal.identity
        return NodeHello(
            protocol_version=PROTOCOL_VERSION, cluster_id="c", role=Role.VOTER,
            node_id=self.node_id, disk_id=identity.disk_id, start_count=identity.start_count,
            nonce=self.nonce, standing=identity.standing,
            enrolled_index=identity.enrolled_index, term=self.node.term,
            is_replacement=self.is_replacement,
        )  # fmt: skip

    def send(self, peer: int, message: AnyMessage) -> bool:
        if not self.world.is_connected(self.node_id, peer):
            return False
        self.held.append((peer, encode_frame(message)))
        self.sent.append((peer, message))
        return True

    def take_sent(self, kind: type | None = None, *, to: int | None = None) -> list[Any]:
        """What was sent since the last call, of one kind or to one peer."""
        sent, self.sent = self.sent, []
        return [
            message
            for peer, message in sent
            if to in (None, peer) and (kind is None or isinstance(message, kind))
        ]

    def forget(self, peer: int) -> None:
        self.held = [item for item in self.held if item[0] != peer]
        self.inbox = deque(item for item in self.inbox if item[0] != peer)

    # What the driver does

    def turn(self) -> None:
        self.take_messages()
        self.node.maybe_establish()
        self.node.tick()
        self.sync()
        self.flush()

    def take_messages(self) -> None:
        while self.inbox:
            peer, message = self.inbox.popleft()
            offer = self.node.receive(peer, message)
            if offer is not None:
                self._on_offer(peer, offer)

    def sync(self) -> None:
        batch = self.journal.prepare()
        if batch is not None:
            batch.write()
            self.journal.complete(batch)
        self.node.after_sync()
        removal = self.journal.prepare_removal()
        if removal is not None:
            removal.run()
            self.journal.removed(removal)

    def flush(self) -> None:
        held, self.held = self.held, []
        for peer, frame in held:
            self.world.wires[self.node_id, peer].append(frame)

    def submit(self, command: bytes) -> Fates:
        fates = Fates()
        assert self.node.submit(command, fates), f"voter {self.node_id} does not lead"
        return fates

    # What the snapshotter does

    def take_snapshot(self) -> None:
        """Of what is applied now; the log is cut behind it."""
        index = self.node.last_applied
        slices = take_picture(self.machine, self.membership.enrolled)
        self.snapshot = self.store.write(
            index=index, term=self.node.term_at(index), slices=slices()
        )
        self.node.on_snapshot(self.snapshot.id, trailing=self.world.limits.trailing_entries)

    def _on_offer(self, peer: int, offer: SnapshotOffer) -> None:
        if self.world.transfers_snapshots and offer.index > self.node.last_applied:
            self.world.due_snapshots.add((self.node_id, peer))

    def fetch_snapshot(self, peer: int) -> None:
        """Everything at once, from the disk of `peer`."""
        newest = self.world.voters[peer].snapshot
        assert newest is not None
        reader = self.world.voters[peer].store.open_reader(newest)
        assert reader is not None
        incoming = self.store.incoming(newest.id)
        incoming.write(0, reader.read(0, newest.size_bytes))
        self.snapshot = incoming.finish()
        picture = read_picture(self.machine, self.store.read(self.snapshot))
        self.node.install_snapshot(self.snapshot.index, self.snapshot.term, picture)
        self.node.on_snapshot(self.snapshot.id, trailing=self.world.limits.trailing_entries)


class Lockstep:
    """Attributes:
    wires: frames on their way, by sender and receiver.
    refusals: what connections ended in, by the one who was refused.
    """

    def __init__(
        self,
        voter_count: int = 3,
        *,
        seed: int = 0,
        timing: Timing | None = None,
        limits: QuorumLimits | None = None,
        make_machine: Callable[[], StateMachine] = ListMachine,
    ) -> None:
        self.now, self.random = 1000.0, Random(seed)
        self.timing, self.limits = timing or Timing(), limits or QuorumLimits()
        self.make_machine = make_machine
        self.ids = tuple(range(1, voter_count + 1))
        self.transfers_snapshots = True
        self.due_snapshots: set[tuple[int, int]] = set()
        self.wires: dict[tuple[int, int], deque[bytes]] = {}
        self.refusals: dict[int, Refusal] = {}
        self.voters = {node_id: self._new_voter(node_id) for node_id in self.ids}

    def __getitem__(self, node_id: int) -> Voter:
        return self.voters[node_id]

    # Links

    def is_connected(self, first: int, second: int) -> bool:
        return (first, second) in self.wires

    def connect(self, first: int, second: int) -> bool:
        """As if one had dialled the other; False if one of them refuses."""
        pairs = ((first, second), (second, first))
        hellos = {node_id: self.voters[node_id].hello() for node_id in (first, second)}
        for one, other in pairs:
            judge = self.voters[other]
            refusal = judge.membership.check_hello(hellos[one], term=judge.node.term)
            if refusal:
                self.refusals[one] = refusal
                return False
        self.wires.update({pair: deque() for pair in pairs})
        for one, other in pairs:
            self.voters[one].node.on_connected(other, hellos[other])
        return True

    def disconnect(self, first: int, second: int) -> None:
        for one, other in ((first, second), (second, first)):
            if self.wires.pop((one, other), None) is not None and one in self.voters:
                self.voters[one].forget(other)
                self.voters[one].node.on_disconnected(other)

    def connect_all(self) -> None:
        running = sorted(self.voters)
        for first in running:
            for second in running:
                if first < second and not self.is_connected(first, second):
                    self.connect(first, second)

    def isolate(self, node_id: int) -> None:
        for other in self.ids:
            self.disconnect(node_id, other)

    # Voters

    def _new_voter(self, node_id: int, *, is_replacement: bool = False) -> Voter:
        files = SimulatedFiles(Random(node_id))
        return Voter(self, node_id, files, is_replacement=is_replacement)

    def crash(self, node_id: int, *, power_lost: bool = True) -> SimulatedFiles:
        """The disk as the next start will find it."""
        self.isolate(node_id)
        return self.voters.pop(node_id).files.after_crash(power_lost=power_lost)

    def start(self, node_id: int, files: SimulatedFiles, *, is_replacement: bool = False) -> Voter:
        self.voters[node_id] = Voter(self, node_id, files, is_replacement=is_replacement)
        return self.voters[node_id]

    def restart(self, node_id: int, *, power_lost: bool = True) -> Voter:
        return self.start(node_id, self.crash(node_id, power_lost=power_lost))

    def replace_disk(self, node_id: int, *, is_replacement: bool = True) -> Voter:
        """The directory is gone; an empty one takes its place, as the operator says."""
        if node_id in self.voters:
            self.crash(node_id)
        self.voters[node_id] = self._new_voter(node_id, is_replacement=is_replacement)
        return self.voters[node_id]

    # Time

    def step(self) -> None:
        """One turn of everybody, then everything arrives that is on its way."""
        self.now += TURN_SECONDS
        for voter in list(self.voters.values()):
            voter.turn()
        self.deliver()
        due, self.due_snapshots = sorted(self.due_snapshots), set()
        for node_id, peer in due:
            self.voters[node_id].fetch_snapshot(peer)

    def deliver(self) -> None:
        for (sender, receiver), frames in sorted(self.wires.items()):
            messages = MessageReader().receive(b"".join(frames))
            frames.clear()
            self.voters[receiver].inbox.extend((sender, message) for message in messages)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step()

    def run_until(self, is_reached: Callable[[], bool], *, within: float = 10.0) -> float:
        """How many seconds it took."""
        began = self.now
        while not is_reached():
            assert self.now < began + within, "not reached in time"
            self.step()
        return self.now - began

    # What most tests begin with

    @property
    def leaders(self) -> list[int]:
        return [node_id for node_id, voter in self.voters.items() if voter.node.is_leader]

    def elect(self, node_id: int) -> Voter:
        """Let this one campaign, the others wait, until it is in office everywhere."""
        voter = self.voters[node_id]

        def is_elected() -> bool:
            for other in self.voters.values():
                is_it = other is voter
                other.node._leader_contact = -1e9  # a test may want an election that is not needed
                other.node.election_deadline = self.now + (-1.0 if is_it else 1000.0)
            return self.leaders == [node_id] and voter.node.is_in_office

        for other in self.voters.values():
            if other is not voter and other.node.is_leader:
                other.node.step_down(other.node.term)
        self.run_until(is_elected)
        return voter

    def settle(self) -> None:
        """Until all running voters have applied the same."""
        self.run_until(self._is_settled)

    def _is_settled(self) -> bool:
        indexes = {voter.journal.last_index for voter in self.voters.values()}
        applied = {voter.node.last_applied for voter in self.voters.values()}
        return len(indexes) == 1 and applied == indexes


def quorum(leader: int = 1, voter_count: int = 3, **settings: Any) -> Lockstep:
    """Connected, established, enrolled, and led by `leader`."""
    world = Lockstep(voter_count, **settings)
    world.connect_all()
    world.elect(leader)
    world.settle()
    return world
