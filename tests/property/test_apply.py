"""Long random histories of a cluster: whatever is said to the metadata, what it promises holds.

Owns a small world: brokers that die, stop, come back with or without their disks, and the logs of
their replicas, so that an election can be judged by what it loses. After every command the image
is checked, and the command is applied a second time from its bytes, with the same outcome. A
failure names its seed.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.msgpack import encode
from msgspec.structs import replace

from raftmq.metadata.apply import apply, apply_bytes
from raftmq.metadata.commands import (
    FORMAT_VERSION,
    NO_BROKER,
    SUPPORTED_LEVEL,
    AllocateProducerIds,
    AlterPartition,
    AlterTopicConfig,
    AssignSlot,
    BeginControlledShutdown,
    BrokerRegistered,
    CancelMove,
    CommitOffsets,
    CreateTopic,
    DeleteGroup,
    DeleteTransactions,
    ElectionKind,
    ElectLeader,
    EndTransactions,
    Envelope,
    FenceBroker,
    FinishReview,
    ForgetSettled,
    JoinTransactions,
    Loss,
    OpenTransaction,
    PartitionId,
    PlanMove,
    ProposedIsrMember,
    RaiseLogStart,
    ReassignPartition,
    RecoveryState,
    Refused,
    RegisterBroker,
    ReportDamage,
    ReviewPartitions,
    SaveGroup,
    SetFeatureLevel,
    UnfenceBroker,
)
from raftmq.metadata.election import min_isr_of
from raftmq.metadata.image import EMPTY_IMAGE, ChangeKind, slot_of
from raftmq.topic_config import parse_topic_config
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.random_commands import TEXTS, RandomCommands
from tests.unit.metadata.states import seen

if TYPE_CHECKING:
    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState

BROKERS = 5
TOPICS = (b"durable".ljust(16), b"page cache".ljust(16))
CONFIGS = ({}, {"durability": "page_cache", "unclean.leader.election.enable": "true"})
LIVES = ("whole", "whole", "whole", "unsynced", "disk", "damage")


class Metadata:
    """One image, and every check that each command has to pass."""

    def __init__(self) -> None:
        self.image = EMPTY_IMAGE
        self.refused = self.applied = 0

    def say(self, command: AnyCommand, command_id: CommandId | None = None) -> AnyResult:
        before, version = self.image, self.image.version + 1
        after, result = apply(before, version, Envelope(FORMAT_VERSION, command, command_id))
        data = encode(Envelope(FORMAT_VERSION, command, command_id))
        assert apply_bytes(before, version, data) == (after, result)
        check_step(before, after)
        check(after)
        if isinstance(result, Refused):
            self.refused += 1
            assert after == before._replace(version=version, changes=(), origins=after.origins)
        else:
            self.applied += 1
        self.image = after
        return result


class World:
    """Brokers with logs. A record is a number; `committed` is what no clean election may lose.

    Leaders see the newest image at once; that epochs protect from those who do not is the matter
    of other tests.
    """

    def __init__(self, seed: float) -> None:
        self.random, self.metadata = Random(seed), Metadata()
        self.logs: dict[tuple[PartitionId, int], list[int]] = {}
        self.committed: dict[PartitionId, list[int]] = {}
        self.epoch_starts: dict[PartitionId, int] = {}
        self.leading_as: dict[PartitionId, int] = {}  # broker epoch under which it was elected
        self.records = self.incarnations = self.unclean = self.clean = self.started = 0
        self.planned: list[PlanMove] = []
        self.disk_epochs: dict[int, int] = {}  # what each broker wrote down
        for broker_id in range(BROKERS):
            self.register(broker_id, lost="whole")
            self.unfence(broker_id)
        while self.image.feature_level < SUPPORTED_LEVEL - 1:
            self.raise_level()
        for topic_id, configs in zip(TOPICS, CONFIGS, strict=True):
            name = topic_id.decode().split()[0]
            assignments = ((0, 1, 2), (2, 3), (4,), (3, 4, 0))
            self.say(CreateTopic(topic_id, name, assignments, dict(configs)))

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    def say(self, command: Any) -> AnyResult:
        before = self.image
        result = self.metadata.say(command)
        for change in self.image.changes:
            if change.kind is ChangeKind.PARTITION:
                assert isinstance(change.key, PartitionId)
                self.follow(change.key, before.partitions.get(change.key))
        return result

    # What a change of a partition means for its logs

    def follow(self, key: PartitionId, before: PartitionState | None) -> None:
        state = self.image.partitions[key]
        for broker_id in set(() if before is None else before.replicas) - set(state.replicas):
            self.logs.pop((key, broker_id), None)
            assert state.isr or state.eligible or not (before and before.isr), f"{key} was dropped"
        if state.leader == NO_BROKER or (before and before.leader_epoch == state.leader_epoch):
            return
        self.leading_as[key] = self.image.brokers[state.leader].broker_epoch
        log = self.log(key, state.leader)
        self.epoch_starts[key] = len(log)
        committed = self.committed.setdefault(key, [])
        is_recovering = state.recovery_state == RecoveryState.RECOVERING
        was_trusted = before is None or state.leader in (*before.isr, *before.eligible)
        if was_trusted or not is_recovering:
            self.clean += 1
            assert log[: len(committed)] == committed, f"{key} lost records: {before} -> {state}"
        else:
            self.unclean += 1
            self.committed[key] = common(committed, log)

    def log(self, key: PartitionId, broker_id: int) -> list[int]:
        return self.logs.setdefault((key, broker_id), [])

    def some_partition(self) -> tuple[PartitionId, PartitionState]:
        key = self.random.choice(sorted(self.image.partitions))
        return key, self.image.partitions[key]

    def some_broker(self) -> BrokerState:
        return self.image.brokers[self.random.randrange(BROKERS)]

    def is_led(self, key: PartitionId, state: PartitionState) -> bool:
        """Whether the process that was elected still lives; it may be fenced and not know it."""
        leader = self.image.brokers.get(state.leader)
        return leader is not None and leader.broker_epoch == self.leading_as[key]

    # What brokers do

    def work(self) -> None:
        """Leaders append, and followers fetch, as far as they get."""
        for key, state in sorted(self.image.partitions.items(), key=lambda item: item[0]):
            if self.is_led(key, state) and self.heads():
                self.append(key, state)
                self.replicate(key, state)
                self.commit(key, state)

    def append(self, key: PartitionId, state: PartitionState) -> None:
        if self.heads():
            self.records += 1
            self.log(key, state.leader).append(self.records)

    def replicate(self, key: PartitionId, state: PartitionState) -> None:
        leader = self.log(key, state.leader)
        for broker_id in state.replicas:
            if broker_id != state.leader and self.random.random() < 0.6:
                shared = len(common(leader, self.log(key, broker_id)))
                end = self.random.choice((len(leader), self.random.randint(shared, len(leader))))
                self.logs[key, broker_id] = leader[:end]

    def commit(self, key: PartitionId, state: PartitionState) -> None:
        """Strict min ISR: with fewer in sync nothing is committed."""
        configs = self.image.topics[key.topic_id].configs
        min_isr = parse_topic_config(configs).min_insync_replicas
        if len(state.isr) < min_isr_of(state, min_isr, self.image.feature_level):
            return
        held = self.log(key, state.leader)
        for broker_id in state.isr:
            held = common(held, self.log(key, broker_id))
        if len(held) > len(self.committed[key]):
            assert held[: len(self.committed[key])] == self.committed[key]
            self.committed[key] = list(held)

    def propose(self) -> None:
        key, state = self.some_partition()
        if not self.is_led(key, state):
            return
        isr = [b for b in state.replicas if b == state.leader or self.may_be_in(key, state, b)]
        members = tuple(ProposedIsrMember(b, self.image.brokers[b].broker_epoch) for b in isr)
        leader = self.image.brokers[state.leader]
        self.say(
            AlterPartition(
                leader.broker_id, leader.broker_epoch, key.topic_id, key.partition,
                state.leader_epoch, state.partition_epoch, members,
            )
        )  # fmt: skip

    def trim(self) -> None:
        """A leader was asked to delete records, of which all are committed."""
        key, state = self.some_partition()
        if self.is_led(key, state):
            leader = self.image.brokers[state.leader]
            start = self.random.randint(0, len(self.committed[key]))
            epochs = leader.broker_epoch, *key, state.leader_epoch
            self.say(RaiseLogStart(leader.broker_id, *epochs, start))

    def may_be_in(self, key: PartitionId, state: PartitionState, broker_id: int) -> bool:
        leader, log = self.log(key, state.leader), self.log(key, broker_id)
        needed = max(len(self.committed[key]), self.epoch_starts[key])
        is_caught_up = len(log) >= needed and leader[: len(log)] == log
        return is_caught_up and self.image.is_active(broker_id) and self.random.random() < 0.8

    def come_back(self) -> None:
        self.register(self.random.randrange(BROKERS), lost=self.random.choice(LIVES))

    def register(self, broker_id: int, *, lost: str) -> None:
        """It is killed right afterwards, now and then; else it writes down its new epoch."""
        known = self.image.brokers.get(broker_id)
        self.incarnations += 1
        if lost == "disk" and known is not None:
            self.say(FenceBroker(broker_id, known.broker_epoch))
            self.disk_epochs[broker_id] = -1
        command = RegisterBroker(
            broker_id,
            incarnation=self.incarnations.to_bytes(16, "big"),
            directory_id=bytes(16) if known is None else known.directory_id,
            previous_broker_epoch=self.disk_epochs.get(broker_id, -1),
            boot_id="boot" if known is None else known.boot_id,
            feature_level_max=SUPPORTED_LEVEL,
        )
        if lost == "disk":
            command = replace(command, directory_id=self.incarnations.to_bytes(16, "big"))
        elif lost == "unsynced":
            command = replace(command, boot_id=f"boot {self.incarnations}")
        elif lost == "damage":
            damaged = [key for key in sorted(self.image.hosted_by(broker_id)) if self.heads()]
            command = replace(command, damaged=tuple(damaged))
        self.lose(broker_id, lost, command)
        result = self.say(command)
        assert isinstance(result, BrokerRegistered), result
        if self.heads():
            self.write_down(broker_id)

    def write_down(self, broker_id: int) -> None:
        """Before it says anything else."""
        self.disk_epochs[broker_id] = self.image.brokers[broker_id].broker_epoch

    def find_damage(self) -> None:
        """A broker in service reads what is not there any more, and says so."""
        broker = self.some_broker()
        hosted = sorted(self.image.hosted_by(broker.broker_id))
        if broker.fenced or not hosted:
            return
        key = self.random.choice(hosted)
        log = self.log(key, broker.broker_id)
        del log[self.random.randint(0, len(log)) :]
        self.say(ReportDamage(broker.broker_id, broker.broker_epoch, (key,)))

    def fail_to_write(self) -> None:
        """A broker in service has lost nothing: whatever was led before is led afterwards."""
        broker = self.some_broker()
        hosted = sorted(self.image.hosted_by(broker.broker_id))
        if broker.fenced or not hosted:
            return
        key = self.random.choice(hosted)
        before = self.image.partitions[key].leader
        self.say(ReportDamage(broker.broker_id, broker.broker_epoch, (key,), Loss.NOTHING))
        after = self.image.partitions[key].leader
        assert self.image.is_unfenced(after) or not self.image.is_unfenced(before)

    def lose(self, broker_id: int, lost: str, command: RegisterBroker) -> None:
        for key in sorted(self.image.hosted_by(broker_id)):
            log = self.log(key, broker_id)
            if lost == "disk":
                log.clear()
            elif key in command.damaged or (lost == "unsynced" and self.is_unsynced(key)):
                del log[self.random.randint(0, len(log)) :]

    def is_unsynced(self, key: PartitionId) -> bool:
        return self.image.topics[key.topic_id].trusts_page_cache

    def heads(self) -> bool:
        return self.random.random() < 0.5

    # What the controller and operators do

    def fence(self) -> None:
        broker = self.some_broker()
        self.say(FenceBroker(broker.broker_id, broker.broker_epoch))

    def stop(self) -> None:
        broker = self.some_broker()
        self.say(BeginControlledShutdown(broker.broker_id, broker.broker_epoch))

    def unfence(self, broker_id: int) -> None:
        self.write_down(broker_id)
        self.say(UnfenceBroker(broker_id, self.image.brokers[broker_id].broker_epoch))

    def attend(self) -> None:
        """What a controller does for one broker, all of it or only the beginning."""
        broker = self.some_broker()
        names = tuple(sorted(self.image.hosted_by(broker.broker_id)))
        if self.random.random() < 0.3:
            names = tuple(name for name in names if self.heads())
        key = (broker.broker_id, broker.broker_epoch)
        self.say(ReviewPartitions(*key, names))
        self.say(FinishReview(*key, broker.pending_since))
        if broker.in_controlled_shutdown:
            self.register(broker.broker_id, lost="whole")
        elif broker.fenced and self.random.random() < 0.8:
            self.unfence(broker.broker_id)
            self.say(ReviewPartitions(*key, names))

    def move(self) -> None:
        key, state = self.some_partition()
        count = self.random.randint(1, 3)
        target = None if self.heads() else tuple(self.random.sample(range(BROKERS), count))
        self.say(ReassignPartition(key.topic_id, key.partition, state.partition_epoch, target))

    def plan_move(self) -> None:
        key, _ = self.some_partition()
        target = tuple(self.random.sample(range(BROKERS), self.random.randint(1, 3)))
        command = PlanMove(*key, target, *seen(self.image, key))
        if not isinstance(self.say(command), Refused):
            self.planned.append(command)

    def start_moves(self) -> None:
        """What a controller does without any limit; some of it comes twice, or too late."""
        for key, plan in sorted(self.image.moves.items()):
            if self.heads():
                epoch = self.image.partitions[key].partition_epoch
                start = ReassignPartition(*key, epoch, plan.replicas, plan.planned_at)
                if self.random.random() < 0.2:
                    self.say(CancelMove(*key) if self.heads() else PlanMove(*key, (0, 1)))
                result = self.say(start)
                self.started += not isinstance(result, Refused)

    def plan_late(self) -> None:
        """Another copy of a plan that was made, maybe long ago: nothing changes."""
        before = self.image
        if self.planned:
            self.say(self.random.choice(self.planned))
            assert self.image.moves == before.moves, "it plans again what is over"

    def cancel_move(self) -> None:
        """Of a partition that moves, or is to, if there is one."""
        key, _ = self.some_partition()
        key = self.random.choice([*sorted(self.image.moves), *sorted(self.image.moving)] or [key])
        self.say(CancelMove(*key))

    def raise_level(self) -> None:
        level = self.image.feature_level
        if level < SUPPORTED_LEVEL:
            self.say(SetFeatureLevel(level, level + 1))

    def elect(self) -> None:
        key, _ = self.some_partition()
        is_desperate = self.random.random() < 0.1
        kind = ElectionKind.UNCLEAN if is_desperate else ElectionKind.PREFERRED
        self.say(ElectLeader(key.topic_id, key.partition, kind))

    def configure(self) -> None:
        """Durability is changed back and forth on the topic that began with the page cache."""
        changes = {"min.insync.replicas": str(self.random.randint(1, 3))}
        topic = self.random.choice(TOPICS)
        if topic == TOPICS[1]:
            changes["durability"] = self.random.choice(("fsync", "page_cache"))
        self.say(AlterTopicConfig(topic, changes))

    def step(self) -> None:
        faults = (self.come_back, self.fence, self.stop, self.find_damage, self.fail_to_write)
        moves = (self.move, self.plan_move, self.plan_late, self.start_moves, self.cancel_move)
        wishes = (*moves, self.elect, self.configure, self.raise_level, self.trim, self.trim)
        often = (self.work, self.work, self.propose, self.attend)
        self.random.choice((*often, *often, *often, *faults, *wishes))()


def common(first: list[int], second: list[int]) -> list[int]:
    """What both begin with."""
    end = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    return first[:end]


@pytest.mark.parametrize("seed", range(20))
def test_no_clean_election_loses_what_was_committed(seed: int) -> None:
    """Brokers crash, lose disks, stop and move; a clean leader holds everything."""
    world = World(seed)
    for _ in range(400):
        world.step()
    partitions = len(world.image.partitions)
    assert world.clean > partitions, "no election but the first of each partition"
    assert sum(map(len, world.committed.values())) > 5
    assert any(state.log_start_offset for state in world.image.partitions.values())
    assert world.started, "no planned move has begun"


@pytest.mark.parametrize("seed", range(10))
def test_nonsense_breaks_nothing(seed: int) -> None:
    """Commands of every kind with random fields, many of them absurd, in the midst of work."""
    random = Random(seed)
    for _ in range(5):
        world = World(random.random())
        for _ in range(random.randrange(60)):
            world.step()
        for _ in range(60):
            drawn = RandomCommands(random, world.image)
            world.metadata.say(drawn.any(), drawn.command_id())
        assert world.metadata.refused > 10


OF_TRANSACTIONS = (
    OpenTransaction, OpenTransaction, *[EndTransactions] * 8, ForgetSettled, DeleteTransactions,
    CommitOffsets, SaveGroup, DeleteGroup, AllocateProducerIds,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_nonsense_about_transactions_breaks_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random ends, openings and deletions of few ids, whose epochs end soon: many are refused,
    many are not, and what `tests.metadata_invariants` says of them holds.
    """
    monkeypatch.setattr("raftmq.metadata.apply.transactions.LAST_EPOCH", 3)
    random, metadata = Random(seed), World(seed).metadata
    for slot in {slot_of(name) for name in TEXTS}:
        metadata.say(AssignSlot(slot, metadata.image.slots[slot].epoch, 0))
    committed = 0
    for _ in range(2_000):
        before = metadata.image
        drawn = RandomCommands(random, before)
        metadata.say(drawn.of(random.choice(OF_TRANSACTIONS)))
        states = {*metadata.image.transactions.values()} - {*before.transactions.values()}
        committed += sum(bool(state.last and state.last.is_committed) for state in states)
    assert committed > 10
    assert metadata.refused > 50


OF_VERSIONS = (
    *[JoinTransactions] * 4, *[EndTransactions] * 8, OpenTransaction, ForgetSettled,
    DeleteTransactions, AllocateProducerIds,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_nonsense_about_versions_breaks_nothing(seed: int) -> None:
    """The same of shared transactions: members that join, commits of few of them."""
    random, metadata = Random(seed), World(seed).metadata
    for slot in {slot_of(name) for name in TEXTS}:
        metadata.say(AssignSlot(slot, metadata.image.slots[slot].epoch, 0))
    decided = 0
    for _ in range(1_500):
        before = metadata.image
        drawn = RandomCommands(random, before)
        metadata.say(drawn.of(random.choice(OF_VERSIONS)))
        for state in {*metadata.image.transactions.values()} - {*before.transactions.values()}:
            if state.shared is not None and state.last is not None:
                decided += 1
    assert decided > 5
