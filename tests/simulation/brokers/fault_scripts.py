"""Fault scripts: several faults in the order that hurts, for worlds of whole brokers.

Owns the scripts, each of three or four faults that chance alone would hardly ever combine, and each
aimed at one rule: without that rule, acknowledged records are lost or changed. A script is given up
where the roles that it needs are not filled in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import die
from tests.simulation.nemesis import until
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.brokers.faults import BrokerDiskFaults, TopicFaults
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.injector import BrokerInjector
    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.brokers.world import World
    from tests.simulation.machine_faults import CrashFaults

CAST_SECONDS_MAX = 4.0  # for the roles of a script to be filled
CHANGE_SECONDS_MAX = 5.0  # for one step of a script to take effect
SLUGGISH_DISK = (0.1, 0.3)
CRAWLING = Latency(0.5, 1.0, 0.0, 0.0)


class Cast(NamedTuple):
    """Three replicas of a partition, all of them in sync.

    Attributes:
        heir: who would lead if the leader died, or whom the script needs.
    """

    spot: Spot
    leader: BrokerHost
    heir: BrokerHost
    third: BrokerHost

    @property
    def hosts(self) -> tuple[BrokerHost, ...]:
        return self.leader, self.heir, self.third


class FaultScripts:
    def __init__(
        self,
        world: World,
        injector: BrokerInjector,
        crashes: CrashFaults,
        disks: BrokerDiskFaults,
        topics: TopicFaults,
    ) -> None:
        self._world, self._network = world, world.network
        self._injector, self._random = injector, injector.random
        self._crashes, self._disks, self._topics = crashes, disks, topics
        self.faults = by_name(
            self.comeback, self.newcomer, self.secession, self.last_one, self.outsider, self.blink,
            self.darkness, self.amnesia, self.oblivion, self.trimmed,
        )  # fmt: skip

    # Who

    async def _cast(self, kind: str, **wishes: bool) -> Cast | None:
        """`wishes`: see `_suits`."""
        found: list[Cast] = []

        def look() -> bool:
            spots = self._world.spots()
            self._random.shuffle(spots)
            casts = [cast for spot in spots for cast in self._casts(spot)]
            found[:] = [cast for cast in casts if self._suits(cast, **wishes)]
            return bool(found)

        if not await until(look, seconds=CAST_SECONDS_MAX):
            return None
        self._injector.struck(kind, f"{found[0].spot} {[host.name for host in found[0].hosts]}")
        return found[0]

    def _casts(self, spot: Spot) -> list[Cast]:
        """The one whose turn it would be comes first."""
        state = self._world.state_of(spot)
        if state is None or len(state.replicas) != 3 or len(state.isr) != 3:
            return []
        hosts = {host.node_id: host for host in self._world.hosts}
        if state.leader not in hosts:
            return []
        followers = [hosts[number] for number in state.replicas if number != state.leader]
        return [Cast(spot, hosts[state.leader], *two) for two in (followers, followers[::-1])]

    def _suits(
        self,
        cast: Cast,
        *,
        is_aloof: bool = False,
        heir_votes: bool | None = None,
        leader_is_first: bool = False,
        heir_is_first: bool = False,
    ) -> bool:
        """All are there. Aloof: none of them is the controller, which shall survive them."""
        state = self._injector.state(cast.spot)
        assert state is not None, "it has been cast"
        order = [number for number in state.replicas if number != state.leader]
        return (
            all(host.is_up and not host.end and not host.is_paused for host in cast.hosts)
            and not (is_aloof and any(host.leads for host in cast.hosts))
            and heir_votes in (None, cast.heir.is_voter)
            and not (leader_is_first and state.replicas[0] != state.leader)
            and not (heir_is_first and order[0] != cast.heir.node_id)
        )

    # What scripts are made of

    def _part_from(self, host: BrokerHost, others: Iterable[BrokerHost]) -> None:
        for other in others:
            if other is not host:
                self._network.cut_both(host.name, other.name)

    def _rejoin(self, host: BrokerHost, others: Iterable[BrokerHost]) -> None:
        for other in others:
            self._network.heal_both(host.name, other.name)

    async def _until_sync(self, host: BrokerHost, spot: Spot, *, is_in_sync: bool) -> bool:
        """Until the metadata says that it is, or is not."""

        def is_so() -> bool:
            state = self._injector.state(spot)
            return state is not None and (host.node_id in state.isr) == is_in_sync

        seconds = self._world.plan.lag_seconds + self._world.plan.session_seconds
        return await until(is_so, seconds=seconds + CHANGE_SECONDS_MAX)

    async def _until_led_by_another(self, cast: Cast) -> bool:
        def is_so() -> bool:
            state = self._injector.state(cast.spot)
            return state is not None and state.leader not in (-1, cast.leader.node_id)

        seconds = self._world.plan.session_seconds + CHANGE_SECONDS_MAX
        return await until(is_so, seconds=seconds)

    async def _succeed(self, cast: Cast) -> None:
        """The leader dies, another replica takes over, and the old leader comes back."""
        await die(cast.leader, power_lost=False)
        for host in cast.hosts:
            self._rejoin(host, self._world.hosts)
        await self._until_led_by_another(cast)
        await self._injector.wait(0.1, 2.0)
        await self._crashes.bring_back([cast.leader])

    # Scripts

    async def trimmed(self) -> None:
        """A leader deletes records and dies with its answer; at times no follower hears of it."""
        cast = await self._cast("trimmed")
        if cast is None:
            return
        if self._random.random() < 0.5:
            self._part_from(cast.leader, cast.hosts)
        await self._topics.delete_records_of(cast.spot)
        await self._succeed(cast)

    async def comeback(self) -> None:
        """A leader is deposed while producers wait for it, and leads again in time for them."""
        cast = await self._cast("comeback", leader_is_first=True)
        if cast is None:
            return
        leader = cast.leader
        self._part_from(leader, self._world.hosts)
        await self._until_led_by_another(cast)
        await self._injector.wait(0.1, 1.0)
        self._rejoin(leader, self._world.hosts)
        await self._until_sync(leader, cast.spot, is_in_sync=True)
        successor = self._injector.leader_of(cast.spot)
        if successor not in (None, leader):
            await self._crashes.crash("kill", [successor], power_lost=False)

    async def newcomer(self) -> None:
        """A leader does not hear that whom it proposed has joined, and loses sight of it."""
        cast = await self._cast("newcomer", is_aloof=True, heir_is_first=True)
        if cast is None:
            return
        leader, heir = cast.leader, cast.heir
        self._part_from(leader, [heir])
        await self._until_sync(heir, cast.spot, is_in_sync=False)
        controller = self._injector.controller()
        if controller is not None:
            self._network.cut(controller.name, leader.name)
        self._rejoin(leader, [heir])
        await self._until_sync(heir, cast.spot, is_in_sync=True)
        self._part_from(leader, [heir])
        await self._injector.wait(0.5, 2.0)
        await self._succeed(cast)

    async def secession(self) -> None:
        """A leader goes on with one of two followers, and cannot tell the controller."""
        cast = await self._cast("secession", is_aloof=True, heir_is_first=True)
        if cast is None:
            return
        controller = self._injector.controller()
        others = [cast.heir, controller] if controller is not None else [cast.heir]
        self._part_from(cast.leader, others)
        await trio.sleep(self._world.plan.lag_seconds + self._random.uniform(1.0, 2.0))
        await self._succeed(cast)

    async def last_one(self) -> None:
        """A leader is alone in sync; then it dies, and the others are there again."""
        cast = await self._cast("last_one", is_aloof=True)
        if cast is None:
            return
        self._part_from(cast.leader, [cast.heir, cast.third])
        await self._until_sync(cast.heir, cast.spot, is_in_sync=False)
        await self._until_sync(cast.third, cast.spot, is_in_sync=False)
        await self._injector.wait(0.5, 2.0)
        await self._succeed(cast)

    async def outsider(self) -> None:
        """Of three replicas only the one that lags stays alive for a while."""
        cast = await self._cast("outsider", is_aloof=True, heir_votes=True)
        if cast is None:
            return
        dying = [cast.leader, cast.third]
        self._part_from(cast.heir, dying)
        await self._until_sync(cast.heir, cast.spot, is_in_sync=False)
        await self._injector.wait(0.5, 2.0)
        for host in dying:
            host.crash(power_lost=False)
        self._rejoin(cast.heir, dying)
        await trio.sleep(self._random.uniform(1.0, 3.0))
        await self._crashes.bring_back(dying)

    async def blink(self) -> None:
        """A leader loses its power, and is back before its session has expired."""
        cast = await self._cast("blink")
        if cast is not None:
            await die(cast.leader, power_lost=True)
            await trio.sleep(self._random.choice((0.0, 0.02, 0.2)))
            if not cast.leader.is_up:
                cast.leader.start()
            await self._injector.wait(0.5, 2.0)

    async def darkness(self) -> None:
        """All die at once; the one whose disk was slow loses its power, and is back first."""
        cast = await self._cast("darkness", is_aloof=True, heir_votes=True)
        if cast is None:
            return
        heir, others, image = cast.heir, [cast.third, cast.leader], self._world.newest_image
        heir.disk_seconds = SLUGGISH_DISK
        await self._injector.wait(0.5, 2.0)
        for host in cast.hosts:
            host.crash(power_lost=host is heir)
        await heir.wait_dead()
        heir.disk_seconds = self._world.plan.disk_seconds
        await until(lambda: not any(image().is_active(host.node_id) for host in others))
        if not heir.is_up:
            heir.start()
        await until(lambda: image().is_active(heir.node_id), seconds=CHANGE_SECONDS_MAX)
        await self._injector.wait(0.5, 2.0)
        await self._crashes.bring_back(others)

    async def amnesia(self) -> None:
        """A follower comes back without its disk, and is in sync when the leader dies."""
        cast = await self._forget("amnesia")
        if cast is not None:
            await self._until_sync(cast.heir, cast.spot, is_in_sync=True)
            await self._leave_behind(cast)

    async def oblivion(self) -> None:
        """A follower comes back without its disk; before it has anything the leader dies."""
        cast = await self._forget("oblivion")
        if cast is not None:
            image, heir = self._world.newest_image, cast.heir
            await until(lambda: image().is_active(heir.node_id), seconds=CHANGE_SECONDS_MAX)
            await self._leave_behind(cast)

    async def _forget(self, kind: str) -> Cast | None:
        """The heir has lost its disk, and comes back; it and the leader are all there is."""
        cast = await self._cast(kind, is_aloof=True, heir_votes=False)
        if cast is None or not self._disks.may_lose_a_disk():
            return None
        leader, heir, spot = cast.leader, cast.heir, cast.spot
        self._part_from(leader, [cast.third])
        await self._until_sync(cast.third, spot, is_in_sync=False)
        if not (self._disks.serves(leader) and self._injector.leader_of(spot) is leader):
            self._rejoin(leader, [cast.third])
            return None
        await self._disks.lose_disk(heir)
        await self._until_sync(heir, spot, is_in_sync=False)
        self._network.slow(leader.name, heir.name, CRAWLING)
        if not heir.is_up:
            heir.start()
        return cast

    async def _leave_behind(self, cast: Cast) -> None:
        leader, heir = cast.leader, cast.heir
        self._part_from(leader, [heir])
        self._network.slow(leader.name, heir.name, self._world.plan.latency)
        await self._succeed(cast)
