"""One process of a simulated broker, from its registration to its death.

Owns what dies with it: its view of the metadata, its roles, its flushes in progress. It translates
an image into assignments, under two rules. It acts on nothing before it knows its own
registration, and it leads only while it sees itself unfenced: what an older image says of its
predecessor's leadership is not its own, as a power cut may have taken part of the log since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.metadata.commands import (
    NO_BROKER,
    NO_EPOCH,
    SUPPORTED_LEVEL,
    BrokerRegistered,
    CommandId,
    RecoveryState,
    Refused,
    RegisterBroker,
)
from raftmq.metadata.election import min_isr_of
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.metadata.liveness import HEARTBEAT_SECONDS, BrokerContact
from raftmq.partition.leader import Assignment, StartOver, before_leading
from tests.simulation.replication.following import Following
from tests.simulation.replication.leading import Leading
from tests.simulation.replication.network import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.commands import AnyCommand, AnyResult, PartitionId
    from raftmq.metadata.controller import HeartbeatAnswer
    from raftmq.metadata.image import MetadataImage, PartitionState
    from tests.simulation.replication.broker import Broker
    from tests.simulation.replication.checks import Checks
    from tests.simulation.replication.disk import ReplicaLog
    from tests.simulation.replication.messages import Answer, FetchRequest, Progress

TICK_SECONDS = 0.4
FENCED_HEARTBEAT_SECONDS = 0.25
Role = Leading | Following


class Process:
    """Attributes:
    roles: of the partitions that it hosts; none where it waits for a leader.
    touched: roles in which something happened during this event.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker, self._world = broker, broker.world
        self.broker_id, self.broker_epoch = broker.broker_id, NO_EPOCH
        self.checks: Checks = broker.world.checks
        self.touched = broker.world.touched
        self.image: MetadataImage = EMPTY_IMAGE
        self.roles: dict[PartitionId, Role] = {}
        self.wants_shutdown = self.has_ended = False
        self._flushes: dict[int, float] = {}  # since when, by the identity of the log
        self._commands = 0
        self.incarnation = broker.chance.randbytes(16)
        for log in broker.directory.logs.values():
            log.recover()

    # Time

    @property
    def now(self) -> float:
        return self._world.timeline.now

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self._world.timeline.after(seconds, self.turn, act, *arguments)

    def turn(self, act: Callable[..., None], *arguments: Any) -> None:
        """Every step of this process begins here: not when dead, later when paused."""
        if self.has_ended:
            return
        if self.broker.is_paused:
            self.broker.backlog.append((act, arguments))
        else:
            act(*arguments)

    def say(self, text: str) -> None:
        self._world.timeline.say(f"b{self.broker_id}.{self.broker_epoch} {text}")

    def end(self) -> None:
        self.has_ended = True
        for role in self.roles.values():
            role.stop()
        self.roles.clear()

    # Registration and heartbeats

    def start(self) -> None:
        directory = self.broker.directory
        registration = RegisterBroker(
            broker_id=self.broker_id,
            incarnation=self.incarnation,
            directory_id=directory.directory_id,
            previous_broker_epoch=directory.broker_epoch,
            boot_id=self.broker.boot_id,
            clean_shutdown_epoch=directory.clean_epoch,
            damaged=tuple(sorted(directory.damaged)),
            feature_level_max=SUPPORTED_LEVEL,
        )
        directory.clean_epoch = NO_EPOCH
        self._register(registration)
        self._beat()
        self._tick()

    def _register(self, registration: RegisterBroker) -> None:
        """With the epoch that is registered now, so that it replaces no later process."""
        if self.broker_epoch != NO_EPOCH:
            return
        known = self._world.quorum.image.brokers.get(self.broker_id)
        epoch = NO_EPOCH if known is None else known.broker_epoch
        self.propose(replace(registration, expected_broker_epoch=epoch), None, self._on_registered)
        self.after(1.0, self._register, registration)

    def _on_registered(self, result: AnyResult) -> None:
        if isinstance(result, BrokerRegistered) and self.broker_epoch == NO_EPOCH:
            self.broker_epoch = self.broker.directory.broker_epoch = result.broker_epoch
            self.broker.directory.damaged.clear()
            self.say("is registered")
            self._obey()
        elif isinstance(result, Refused):
            self.say(f"is not registered: {result.message}")

    def _beat(self) -> None:
        me = self.image.brokers.get(self.broker_id)
        is_fenced = me is None or me.fenced
        self.after(FENCED_HEARTBEAT_SECONDS if is_fenced else HEARTBEAT_SECONDS, self._beat)
        if self.broker_epoch == NO_EPOCH:
            return
        said = BrokerContact(
            self.broker_id,
            self.broker_epoch,
            self.image.version,
            self.now - min(self._flushes.values(), default=self.now),
            self.wants_shutdown,
        )
        self._world.network.send(
            (self.broker_id, CONTROLLER), self._world.quorum.on_heartbeat, said, self.hear_answer
        )

    def hear_answer(self, answer: HeartbeatAnswer) -> None:
        link = (CONTROLLER, self.broker_id)
        self._world.network.send(link, self.turn, self._on_answer, answer)

    def _on_answer(self, answer: HeartbeatAnswer) -> None:
        if answer.may_stop:
            self.broker.stop()

    # The metadata

    def propose(
        self,
        command: AnyCommand,
        command_id: CommandId | None,
        on_result: Callable[[AnyResult], None],
    ) -> None:
        def answer(result: AnyResult) -> None:
            link = (CONTROLLER, self.broker_id)
            self._world.network.send(link, self.turn, on_result, result)

        link = (self.broker_id, CONTROLLER)
        self._world.network.send(link, self._world.quorum.on_proposal, command, command_id, answer)

    def next_command_id(self) -> CommandId:
        self._commands += 1
        return CommandId(self.broker_id, self.broker_epoch, self._commands)

    def on_image(self, image: MetadataImage) -> None:
        assert image.version >= self.image.version, "metadata goes back"
        self.image = image
        self._obey()
        for role in self.roles.values():
            if isinstance(role, Leading):
                role.resolve()

    def new_value(self) -> int:
        return self._world.clients.new_value()

    def _obey(self) -> None:
        """Take the roles that the metadata gives this process."""
        if self.broker_epoch == NO_EPOCH or self.image.version < self.broker_epoch:
            return
        me = self.image.brokers[self.broker_id]
        may_lead = not me.fenced and me.broker_epoch == self.broker_epoch
        for key in sorted(self.image.hosted_by(self.broker_id)):
            assignment = self._assignment(key, self.image.partitions[key])
            if assignment.leader == self.broker_id and may_lead:
                self._lead(key, assignment)
            elif assignment.leader in (self.broker_id, NO_BROKER):
                self._give_up(key)
            else:
                self._follow(key, assignment)

    def _assignment(self, key: PartitionId, state: PartitionState) -> Assignment:
        configured = int(self.image.topics[key.topic_id].configs["min.insync.replicas"])
        return Assignment(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=state.replicas,
            isr=state.isr,
            min_isr=min_isr_of(state, configured, self.image.feature_level),
            is_recovering=state.recovery_state == RecoveryState.RECOVERING,
            log_start_offset=state.log_start_offset,
        )

    def _lead(self, key: PartitionId, assignment: Assignment) -> None:
        role = self.roles.get(key)
        if isinstance(role, Leading) and role.leader_epoch == assignment.leader_epoch:
            role.on_assignment(assignment)
            return
        self._give_up(key)
        log = self.log(key)
        self.begin_at(log, assignment.log_start_offset)
        leading = self.roles[key] = Leading(self, key, log, assignment)
        self.on_written(leading.log)
        leading.on_held()
        leading.resolve()

    def begin_at(self, log: ReplicaLog, start_offset: int) -> None:
        """Before it leads, and whenever the start rises while it does."""
        needed = before_leading(start_offset, log_start_offset=log.start, log_end_offset=log.end)
        if isinstance(needed, StartOver):
            log.start_over(start_offset)
        elif needed is not None:
            log.trim(start_offset)
        log.high_watermark = max(log.high_watermark, log.start)

    def _follow(self, key: PartitionId, assignment: Assignment) -> None:
        role = self.roles.get(key)
        if isinstance(role, Following) and role.leader_epoch == assignment.leader_epoch:
            return
        self._give_up(key)
        following = self.roles[key] = Following(self, key, self.log(key), assignment)
        self.on_written(following.log)
        following.poll()

    def _give_up(self, key: PartitionId) -> None:
        role = self.roles.pop(key, None)
        if role is not None:
            role.stop()

    def log(self, key: PartitionId) -> ReplicaLog:
        return self.broker.log(key, self.image.topics[key.topic_id].configs["durability"])

    def epoch_in_isr(self, broker_id: int) -> int | None:
        """The broker epoch of possible ISR members; a leader that shuts down may stay in it."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return None
        is_leaving = broker.in_controlled_shutdown and broker_id != self.broker_id
        return None if is_leaving else broker.broker_epoch

    # The others

    def send_fetch(
        self, leader: int, request: FetchRequest, on_answer: Callable[[Answer], None]
    ) -> None:
        target = self._world.brokers[leader].process
        if target is None:
            return

        def serve() -> None:
            role = target.roles.get(request.key)
            if isinstance(role, Leading):
                answer = role.on_fetch(request)
                self._world.network.send((leader, self.broker_id), self.turn, on_answer, answer)

        self._world.network.send((self.broker_id, leader), target.turn, serve)

    def send_progress(self, leader: int, said: Progress) -> None:
        target = self._world.brokers[leader].process
        if target is not None:
            link = (self.broker_id, leader)
            self._world.network.send(link, target.turn, target.on_progress, said)

    def on_progress(self, said: Progress) -> None:
        role = self.roles.get(said.key)
        if isinstance(role, Leading):
            role.on_progress(said)

    # The disk

    def on_written(self, log: ReplicaLog) -> None:
        """At most one flush of a log is under way; page caches are flushed by chance only."""
        if id(log) in self._flushes or log.synced >= log.end:
            return
        self._flushes[id(log)] = self.now
        log.flushing = log.end
        self.after(self.broker.flush_seconds(log), self._on_flushed, log)

    def _on_flushed(self, log: ReplicaLog) -> None:
        frozen_seconds = self.broker.frozen_until - self.now
        if frozen_seconds > 0:
            self.after(min(frozen_seconds, 0.2), self._on_flushed, log)
            return
        del self._flushes[id(log)]
        log.synced = max(log.synced, log.flushing)
        for role in [role for role in self.roles.values() if role.log is log]:
            role.on_held()
        self.on_written(log)

    # The time

    def _tick(self) -> None:
        self.after(TICK_SECONDS, self._tick)
        for role in list(self.roles.values()):
            role.log.checkpoint = role.log.high_watermark
            if isinstance(role, Leading):
                role.on_tick()
