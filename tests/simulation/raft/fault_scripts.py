"""Fault scripts of the quorum's world: several faults in the order that hurts.

Owns the scripts: three or four faults that chance alone would hardly ever combine, each of which
would break a quorum that lacks one of its rules.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import trio

from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import die
from tests.simulation.nemesis import until
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.raft.faults import VoterDiskFaults, VoterInjector
    from tests.simulation.raft.hosts import Host, Voter
    from tests.simulation.raft.world import World

REFUSAL_SECONDS_MAX = 10.0
SUCCESSION_SECONDS_MAX = 0.5
CALM_AGAIN_SECONDS_MAX = 15.0  # an election, and a disk that was enrolled already


class FaultScripts:
    def __init__(self, world: World, injector: VoterInjector, disks: VoterDiskFaults) -> None:
        self._world, self._network, self._disks = world, world.network, disks
        self._injector, self._random = injector, injector.random
        self.faults = by_name(
            self.usurpation,
            self.betrayal,
            self.reunion,
            self.exile,
            self.old_copy,
            self.rash_replacement,
        )

    async def usurpation(self) -> None:
        """Followers lose the leader and elect another one; the old leader does not notice yet."""
        leader = self._injector.leader()
        if leader is None or len(self._world.voters) == 1:
            return
        self._injector.struck("usurpation", leader.name)
        self._world.send_witnesses(leader)
        others = self._others(leader)
        self._hang_up_on(leader, others)
        if self._random.random() < 0.5:
            self._cut_off([leader], others)
            await self._injector.wait(0.3, 3.0)
            self._network.heal()

    async def betrayal(self) -> None:
        """What a bare majority has acknowledged must outlive its leader, and a disk of it."""
        leader = self._injector.leader()
        if leader is None or len(self._world.voters) == 1:
            return
        others = [voter for voter in self._world.voters if voter is not leader]
        self._random.shuffle(others)
        middle = len(self._world.voters) // 2
        confidants, strangers = others[:middle], others[middle:]
        self._injector.struck("betrayal", [voter.name for voter in (leader, *confidants)])
        self._cut_off([leader, *confidants], strangers)
        self._world.send_witnesses(leader)
        if self._random.random() < 0.6:
            confidants[0].disk_seconds = (0.05, 0.3)
        await self._injector.wait(0.3, 1.2)
        self._network.heal()
        victims = self._alive(leader, confidants[0])
        may_forget = self._random.random() < 0.4
        await self._die_together(victims, forgetful=confidants[0] if may_forget else None)
        confidants[0].disk_seconds = self._world.plan.disk_seconds
        await self._rise(victims[::-1])

    async def reunion(self) -> None:
        """A deposed leader that does not know it yet meets a voter that forgot who deposed it."""
        leader, voters = self._injector.leader(), self._world.voters
        if leader is None or len(voters) != 3:
            return
        self._injector.struck("reunion", leader.name)
        others = self._others(leader)
        self._hang_up_on(leader, others)
        self._cut_off([leader], others)
        self._world.propose_in_vain(leader)
        rivals = [voter for voter in voters if voter is not leader]
        await until(lambda: any(v.leads for v in rivals), seconds=SUCCESSION_SECONDS_MAX)
        await trio.sleep(self._random.uniform(0.05, 0.2))
        victims = sorted(self._alive(*rivals), key=lambda voter: voter.leads)
        await self._die_together(victims, forgetful=victims[0] if victims else None)
        self._network.heal()
        await self._rise(victims)

    async def exile(self) -> None:
        """A leader comes back with entries that no other node has, after two others have led."""
        leader = self._injector.leader()
        if leader is None or len(self._world.voters) == 1:
            return
        self._injector.struck("exile", leader.name)
        self._cut_off([leader], self._others(leader))
        self._world.propose_in_vain(leader)
        await self._injector.wait(0.05, 0.5)
        await die(leader, power_lost=self._random.random() < 0.5)
        self._network.heal()
        await self._injector.wait(1.0, 3.0)
        successor = self._injector.leader()
        if successor is not None and self._random.random() < 0.7:
            await die(successor, power_lost=self._random.random() < 0.5)
            await self._rise([successor])
        await self._rise([leader])

    async def old_copy(self) -> None:
        """A directory comes back as it was; a peer has seen it in use since, or replaced."""
        victim = self._random.choice(self._world.voters)
        copy = victim.disk.photograph(Random(f"{self._world.seed}/copy"), power_lost=False)
        await self._injector.wait(0.1, 1.0)
        is_replaced = self._random.random() < 0.5
        await self._die_together([victim], forgetful=victim if is_replaced else None)
        victim.start()
        if not await until(lambda: self._world.is_calm):
            return
        await self._injector.wait(0.1, 1.0)
        await die(victim, power_lost=self._random.random() < 0.5)
        newest, victim.disk = victim.disk, copy
        self._injector.struck("old_copy", f"{victim.name} replaced={is_replaced}")
        await self._expect_refusal(victim)
        victim.disk = newest
        victim.start()

    async def rash_replacement(self) -> None:
        """A majority dies, its operator gives it empty directories, and puts the old ones back."""
        voters = self._world.voters
        keeper = self._injector.leader() or self._random.choice(voters)
        others = [voter for voter in voters if voter is not keeper]
        count = self._random.randint(len(voters) // 2 + 1, max(1, len(others)))
        if len(others) < count:  # a quorum of one
            return
        victims = self._random.sample(others, count)
        self._injector.struck("rash_replacement", [voter.name for voter in victims])
        with trio.CancelScope(shield=True):  # the old ones come back in any case
            await self._die_together(victims, forgetful=None)
            own = {victim: victim.disk for victim in victims}
            for victim in victims:
                victim.enrolments_before = self._world.ledger.enrolments[victim.node_id]
                victim.lose_disk()
                victim.start()
            await trio.sleep(self._random.uniform(0.1, 4.0))
            for victim in victims:
                is_blank = victim.quorum is None or not victim.is_whole
                demand(
                    is_blank, f"{victim.name}: an empty directory counts, and no majority was there"
                )
            await self._die_together(victims, forgetful=None)
            for victim in victims:
                victim.disk, victim.is_whole = own[victim], True
            await self._rise(victims)
            is_calm = await until(lambda: self._world.is_calm, seconds=CALM_AGAIN_SECONDS_MAX)
            demand(is_calm, "the directories are back, and the voters do not find together")
            for victim in victims:
                victim.enrolments_before = None

    async def _expect_refusal(self, victim: Voter) -> None:
        victim.must_be_refused = True
        victim.start()
        with trio.CancelScope(shield=True), trio.move_on_after(REFUSAL_SECONDS_MAX):
            await victim.ended.wait()
        demand(victim.end == "refused", f"{victim.name}: an old copy of its directory was let in")
        victim.must_be_refused = False

    # What scripts are made of

    def _others(self, voter: Voter) -> list[Host]:
        return [host for host in self._world.hosts if host is not voter]

    def _alive(self, *voters: Voter) -> list[Voter]:
        return [voter for voter in voters if voter.is_up and not voter.end]

    def _hang_up_on(self, leader: Voter, others: Sequence[Host]) -> None:
        """The others learn of it at once, the leader later."""
        for host in others:
            seconds = self._random.uniform(0.3, 3.0)
            self._network.reset(leader.name, host.name, first_seconds=seconds)

    def _cut_off(self, some: Sequence[Host], others: Sequence[Host]) -> None:
        names = [[host.name for host in group] for group in (some, others)]
        self._network.partition(*names)

    async def _die_together(self, victims: Sequence[Voter], *, forgetful: Voter | None) -> None:
        """Of one of them the disk is lost, too, if the others can stand it."""
        for victim in victims:
            victim.crash(power_lost=self._random.random() < 0.8)
        for victim in victims:
            await victim.wait_dead()
        if forgetful in victims and self._disks.may_lose_disk(forgetful) and forgetful.lose_disk():
            self._injector.struck("lost_disk", forgetful.name)

    async def _rise(self, victims: Sequence[Voter]) -> None:
        """One after the other, so that the first ones must get along without the rest."""
        for victim in victims:
            if not victim.is_up:
                victim.start()
            await self._injector.wait(1.0, 3.0)
