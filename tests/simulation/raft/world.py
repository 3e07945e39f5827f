"""The world of the Raft quorum under virtual time: one seed is one replay of nodes and faults.

Owns the acts: nodes start, clients work while the nemesis injects faults, then all is repaired, the
quorum must serve again within HEAL_SECONDS_MAX, and every promise is judged. PySyncObj, voters and
observer are the real ones; only disks, network and clock are simulated.

    python -m tests.simulation.raft --seed N
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.model import Address
from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import CrashFaults, LinkFaults, StallFaults
from tests.simulation.nemesis import Nemesis
from tests.simulation.raft.checks import Ledger, TooLittle, Violation, demand
from tests.simulation.raft.client_history import ClientHistory
from tests.simulation.raft.clients import Client, propose_somewhere
from tests.simulation.raft.fault_scripts import FaultScripts
from tests.simulation.raft.faults import VoterDiskFaults, VoterInjector
from tests.simulation.raft.hosts import Observer, Voter
from tests.simulation.raft.plan import draw_plan
from tests.simulation.raft.tuning import tuned
from tests.simulation.simulated_world import SimulatedWorld, failure_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from raftmq.metadata.raft.engine.node import RaftNode
    from tests.simulation.raft.hosts import Host
    from tests.simulation.raft.plan import Plan

SECONDS = 4.0  # of faults, some dozen election timeouts
HEAL_SECONDS_MAX = 15.0  # for an election, a snapshot and a lost disk
DRAIN_SECONDS_MAX = 10.0  # for clients in their last call
DONE_MIN, FAULTS_MIN = 30, 3
EXCLUSIVE_KINDS = ("old_copy", "rash_replacement")


class World(SimulatedWorld):
    module = "tests.simulation.raft"
    logger = logging.getLogger("raftmq.metadata")
    plan: Plan
    clients: trio.Nursery  # for as long as faults strike

    def __init__(self, seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> None:
        super().__init__(seed, draw_plan(seed, seconds, kinds), wanted=kinds)
        self.ledger, self.history = Ledger(), ClientHistory()
        voter_ids = range(1, self.plan.voter_count + 1)
        self.addresses = {voter: Address(f"n{voter}", 9000) for voter in voter_ids}
        self.voters = [Voter(self, voter) for voter in voter_ids]
        self.hosts: list[Host] = [*self.voters, Observer(self, 90)]
        self.nemesis = self._nemesis()
        self._strangers = count(50)

    def _nemesis(self) -> Nemesis:
        injector = VoterInjector(self)
        crashes = CrashFaults(self, injector)
        disks = VoterDiskFaults(self, injector, crashes)
        return Nemesis(
            self,
            injector,
            LinkFaults(self, injector).faults,
            StallFaults(self, injector).faults,
            crashes.faults,
            by_name(crashes.power),
            disks.faults,
            FaultScripts(self, injector, disks).faults,
            exclusive=EXCLUSIVE_KINDS,
        )

    # Telling

    def on_log(self, record: logging.LogRecord) -> None:
        """What only a faulty peer can cause is a violation."""
        text = record.getMessage()
        self.trace(f"log {text}")
        demand("protocol_error" not in text, f"a voter takes another one for faulty: {text}")

    def __str__(self) -> str:
        faults = sum(self.nemesis.counts.values())
        return (
            f"seed {self.seed}: {self.plan.voter_count} voters, {self.history.done} done,"
            f" {self.history.unknown} unknown, {self.history.refused} refused, {faults} faults,"
            f" {len(self.ledger.leaders)} leaders, {len(self.ledger.versions)} commands,"
            f" healed in {self.heal_seconds:.1f} s, {self.digest[:16]}"
        )

    # How it stands

    @property
    def has_begun(self) -> bool:
        return bool(self.ledger.leaders)

    @property
    def is_calm(self) -> bool:
        """All are up and whole, and every two voters are connected."""
        voters = self.voters
        return all(
            voter.quorum is not None and not voter.is_paused and not voter.end and voter.is_whole
            for voter in voters
        ) and all(a.knows(b) for a in voters for b in voters if a is not b)

    def propose_in_vain(self, voter: Voter) -> None:
        """Give an isolated leader an entry that no other node will have."""
        self.clients.start_soon(Client(self, next(self._strangers)).burst_at, voter)

    def send_witnesses(self, leader: Voter) -> None:
        """Clients that see what a deposed leader says, and what its successor says first."""
        for watched in (leader, None):
            witness = Client(self, next(self._strangers))
            self.clients.start_soon(partial(witness.testify, watched, avoided=leader))

    # The acts

    def tuned(self) -> AbstractContextManager[None]:
        return tuned(self.plan.sizes)

    async def main(self) -> None:
        seconds_max = 10 * (self.plan.seconds + HEAL_SECONDS_MAX)
        with trio.fail_after(seconds_max):
            async with trio.open_nursery() as self.nursery:
                await self._acts()

    async def _acts(self) -> None:
        for host in self.hosts:
            host.start()
        await Client(self, 0).prepare()
        await self._inject_faults()
        self._repair()
        await self._heal()
        self._judge()
        await self._stop()
        self.nursery.cancel_scope.cancel()  # tasks that would start a node once more

    async def _inject_faults(self) -> None:
        async with trio.open_nursery() as self.clients:
            for number in range(1, self.plan.client_count + 1):
                self.clients.start_soon(Client(self, number).run)
            with trio.move_on_after(self.plan.seconds) as faults:
                self.clients.start_soon(self.prolong, faults)
                await self.nemesis.run()
            self._repair()
            self.is_closing = True

    def is_busy(self) -> bool:
        return self.history.done >= DONE_MIN

    def has_done_enough(self) -> bool:
        return self.is_busy() and self.nemesis.counts.total() >= FAULTS_MIN

    def _repair(self) -> None:
        self.mend()
        for host in self.hosts:
            if not host.is_up:
                host.start()

    async def _heal(self) -> None:
        began_at = trio.current_time()
        with trio.move_on_after(HEAL_SECONDS_MAX):
            while not await propose_somewhere(self.voters):  # noqa: ASYNC110  # a poll it is
                await trio.sleep(0.02)
            while not self._is_caught_up():  # noqa: ASYNC110
                await trio.sleep(0.02)
            self.heal_seconds = trio.current_time() - began_at
            return
        raise Violation(f"not in service {HEAL_SECONDS_MAX} s after the repairs: {self._states()}")

    def _is_caught_up(self) -> bool:
        """Everybody shows all that is committed, and one leads."""
        nodes = [voter.node for voter in self.voters if voter.quorum is not None]
        images = [host.quorum.image.version for host in self.hosts if host.quorum is not None]
        newest = self.ledger.versions[-1]
        return (
            len(images) == len(self.hosts)
            and sum(node.is_leader for node in nodes) == 1
            and all(version == newest for version in images)
            and all(voter.is_whole for voter in self.voters)
        )

    def _states(self) -> str:
        states = [
            f"{host.name}: " + (f"{host.quorum.image.version}" if host.quorum else "down")
            for host in self.hosts
        ]
        states += [
            f"{voter.name}: {voter.quorum.leadership} commit {voter.node.commit_index}"
            f" last {voter.node.journal.last_index} {voter.node.membership.standing.name}"
            for voter in self.voters
            if voter.quorum
        ]
        return "; ".join(states)

    def _judge(self) -> None:
        self.history.judge_history()
        commands = [self.ledger.applied[version].command for version in self.ledger.versions]
        for host in self.hosts:
            assert host.quorum is not None, f"{host.name} is down"
            self.history.judge_image(host.name, host.quorum.image)
            self.history.judge_blocks(commands, host.quorum.image)
        for voter in self.voters:
            self._judge_memory(voter.name, voter.node)
        if not self.has_done_enough():
            raise TooLittle(f"too little happened: {self}")

    def _judge_memory(self, name: str, node: RaftNode) -> None:
        """What is kept does not grow with what was done."""
        waiting = len(node.proposals)
        demand(waiting == 0, f"{name}: {waiting} proposals wait for ever")
        demand(not node.reads._waiting, f"{name}: {len(node.reads._waiting)} reads wait for ever")
        limits = self.plan.limits
        kept, most = len(node.journal), 3 * limits.snapshot_entries + limits.trailing_entries + 2000
        demand(kept <= most, f"{name}: {kept} entries are kept, {most} are allowed")

    async def _stop(self) -> None:
        for host in self.hosts:
            host.stop()
        for host in self.hosts:
            await host.ended.wait()
            demand(host.end == "stopped", f"{host.name} did not stop, but ended: {host.end}")


def failure(seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    return failure_of(World(seed, seconds=seconds, kinds=kinds))
