"""A model broker for the controller's world: registration, heartbeats, leadership, a disk.

Owns what survives a process (`Disk`) and what does not. It acts on its own view of the metadata,
which is late, and even if it was fenced meanwhile: the epochs that it sends must make that
harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    NO_EPOCH,
    SUPPORTED_LEVEL,
    AlterPartition,
    BrokerRegistered,
    PartitionId,
    ProposedIsrMember,
    RecoveryState,
    Refused,
    RegisterBroker,
    ReportDamage,
)
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.metadata.liveness import HEARTBEAT_SECONDS, BrokerContact

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.commands import AnyResult
    from raftmq.metadata.image import PartitionState
    from tests.simulation.controller_world import World

VIEW_SECONDS = 0.3  # how late a broker may be with the metadata
LEAD_SECONDS = 0.5  # how often it looks whether an ISR should change
# Another process was faster; or its predecessor, with another disk, is not known to be gone.
_REFUSALS = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.DUPLICATE_BROKER_REGISTRATION)


@dataclass
class Disk:
    directory_id: bytes
    broker_epoch: int = NO_EPOCH
    clean_epoch: int = NO_EPOCH  # of the process that was shut down cleanly last
    boot_id: str = "boot"


class SimulatedBroker:
    """One broker id through all its processes; `life` tells them apart."""

    def __init__(self, world: World, broker_id: int) -> None:
        self._world, self._random = world, world.random
        self.broker_id, self.rack = broker_id, f"rack {broker_id % 2}"
        self.disk = Disk(self._random.randbytes(16))
        self.life, self.is_running, self.wants_shutdown = 0, False, False
        self.paused_until = self.stuck_until = 0.0
        self.frozen_since: float | None = None
        self._incarnation, self._broker_epoch = b"", NO_EPOCH
        self._view = EMPTY_IMAGE

    # A life

    def start(self) -> None:
        if self.is_running:
            return
        self.life += 1
        self.is_running, self.wants_shutdown = True, False
        self.paused_until, self.stuck_until, self.frozen_since = 0.0, 0.0, None
        self._register(clean_epoch=self.disk.clean_epoch)
        self.disk.clean_epoch = NO_EPOCH
        self._every(VIEW_SECONDS, self._look)
        self._every(HEARTBEAT_SECONDS, self._heartbeat)
        self._every(LEAD_SECONDS, self._lead)

    def kill(self) -> None:
        self.is_running = False
        self.life += 1

    def lose_power(self) -> None:
        self.kill()
        self.disk.boot_id = self._random.randbytes(4).hex()

    def lose_disk(self) -> None:
        self.kill()
        self.disk = Disk(self._random.randbytes(16), boot_id=self.disk.boot_id)

    def pause(self, seconds: float = 15.0) -> None:
        self.paused_until = self._world.now + seconds

    def _stop(self) -> None:
        self.kill()
        self.disk.clean_epoch = self._broker_epoch
        self._world.on_stopped(self)

    def _every(self, seconds: float, act: Callable[[], None]) -> None:
        """Again and again while this process lives; nothing happens while it is paused."""
        life = self.life

        def turn() -> None:
            if self.life != life:
                return
            if self._world.now < self.paused_until:
                self._world.at(self.paused_until, turn)
                return
            act()
            self._world.after(seconds * self._random.uniform(0.8, 1.0), turn)

        self._world.after(seconds * self._random.random(), turn)

    # What it does

    def _register(self, *, clean_epoch: int) -> None:
        self._incarnation, self._broker_epoch = self._random.randbytes(16), NO_EPOCH
        registration = RegisterBroker(
            broker_id=self.broker_id,
            incarnation=self._incarnation,
            directory_id=self.disk.directory_id,
            rack=self.rack,
            previous_broker_epoch=self.disk.broker_epoch,
            boot_id=self.disk.boot_id,
            clean_shutdown_epoch=clean_epoch,
            damaged=self._damaged(),
            feature_level_max=SUPPORTED_LEVEL,
        )
        self._send_registration(registration)

    def _send_registration(self, registration: RegisterBroker) -> None:
        """With the epoch that is registered now, so that it replaces no later process."""
        if self._incarnation != registration.incarnation or not self.is_running:
            return
        known = self._world.image.brokers.get(self.broker_id)
        epoch = NO_EPOCH if known is None else known.broker_epoch

        def on_result(result: AnyResult | None) -> None:
            if self._incarnation != registration.incarnation or not self.is_running:
                return
            if isinstance(result, BrokerRegistered):
                self._broker_epoch = self.disk.broker_epoch = result.broker_epoch
            elif isinstance(result, Refused):
                assert result.code in _REFUSALS, f"registration: {result}"
                self._world.after(1.0, lambda: self._send_registration(registration))
            else:
                self._send_registration(registration)

        self._world.propose(replace(registration, expected_broker_epoch=epoch), on_result)

    def _damaged(self) -> tuple[PartitionId, ...]:
        if self._world.is_calm or self._random.random() > 0.05:
            return ()
        hosted = sorted(self._world.image.hosted_by(self.broker_id))
        return tuple(self._random.sample(hosted, min(2, len(hosted))))

    def report_damage(self) -> None:
        """Some replicas have lost records while it runs."""
        hosted = sorted(self._view.hosted_by(self.broker_id))
        if self.is_running and self._broker_epoch != NO_EPOCH and hosted:
            damaged = tuple(self._random.sample(hosted, min(2, len(hosted))))
            self._world.propose(ReportDamage(self.broker_id, self._broker_epoch, damaged))

    def _look(self) -> None:
        if self._world.now >= self.stuck_until:
            self._view = self._world.image

    def _heartbeat(self) -> None:
        if self._broker_epoch == NO_EPOCH:
            return
        hanging = 0.0 if self.frozen_since is None else self._world.now - self.frozen_since
        said = BrokerContact(
            self.broker_id, self._broker_epoch, self._view.version, hanging, self.wants_shutdown
        )
        answer = self._world.heartbeat(said)
        if answer is None:
            return
        if answer.code != ErrorCode.NONE:
            self._register(clean_epoch=NO_EPOCH)
        elif answer.may_stop:
            self._stop()

    def _lead(self) -> None:
        for key in sorted(self._view.hosted_by(self.broker_id)):
            partition = self._view.partitions[key]
            if partition.leader == self.broker_id:
                self._maybe_alter(key, partition)

    def _maybe_alter(self, key: PartitionId, partition: PartitionState) -> None:
        isr = [member for member in partition.replicas if self._wants(member, partition)]
        if partition.recovery_state == RecoveryState.RECOVERING:
            isr = [self.broker_id]
        elif tuple(isr) == partition.isr:
            return
        members = tuple(ProposedIsrMember(it, self._view.brokers[it].broker_epoch) for it in isr)
        command = AlterPartition(
            self.broker_id,
            self._broker_epoch,
            *key,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=members,
        )
        self._world.propose(command)

    def _wants(self, member: int, partition: PartitionState) -> bool:
        """Whether it is to be in sync: followers fall behind and catch up by chance."""
        if member == self.broker_id:
            return True
        # A new replica copies for a while.
        slow = 0.15 if member in partition.adding else 0.4
        chance = 1.0 if self._world.is_calm else 0.95 if member in partition.isr else slow
        return self._view.is_active(member) and self._random.random() < chance
