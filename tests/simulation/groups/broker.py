"""A broker of the world of groups: the real coordinator rules, and its connection to the quorum.

Owns what the rules leave to their shell: tokens, one command at a time, loading, and giving up. Its
view may be outdated: then the quorum refuses its commands.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from raftmq.broker.groups import coordinator
from raftmq.broker.groups.group import Group
from raftmq.broker.groups.phases import AnswerRequest, SavePlan
from raftmq.errors import ErrorCode, InvalidCommand, NotCoordinator
from raftmq.metadata.commands import Done, Refused
from raftmq.wire.messages.groups import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    SyncGroup,
    SyncGroupReply,
)
from tests.simulation.groups.asks import GROUP, Commit, Committed
from tests.simulation.groups.checks import demand
from tests.simulation.groups.crashing import crashed_of

if TYPE_CHECKING:
    from raftmq.broker.groups.phases import GroupEffect
    from tests.simulation.groups.asks import Ask
    from tests.simulation.groups.connection import Connection
    from tests.simulation.groups.world import World

REPLIES = {
    JoinGroup: JoinGroupReply,
    SyncGroup: SyncGroupReply,
    Heartbeat: HeartbeatReply,
    LeaveGroup: LeaveGroupReply,
    Commit: Committed,
}


class Broker:
    def __init__(self, world: World, broker_id: int) -> None:
        self.world, self.broker_id = world, broker_id
        self.coordinator: Coordinator | None = None
        self.restarts = 0
        self._connections: list[Connection] = []

    def __str__(self) -> str:
        return f"b{self.broker_id}"

    def on_request(self, connection: Connection, ask: Ask) -> None:
        if connection not in self._connections:
            self._connections.append(connection)
        if self.coordinator is None or not self.coordinator.is_meant(ask):
            connection.answer(ask, REPLIES[type(ask)](error=ErrorCode.NOT_COORDINATOR))
        else:
            self.coordinator.on_request(connection, ask)

    def on_cut(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
        if self.coordinator is not None:
            self.coordinator.on_cut(connection)

    def take_office(self, slot_epoch: int) -> None:
        """It has heard that the slot is its own, and reads what its predecessor kept."""
        if slot_epoch == self.world.quorum.slot.epoch:
            self.abandon()
            self.coordinator = Coordinator(self, slot_epoch)

    def abandon(self) -> None:
        if self.coordinator is not None:
            self.coordinator.abandon()
            self.coordinator = None

    def crash(self) -> None:
        self.coordinator = None
        self.restarts += 1
        for connection in list(self._connections):
            connection.cut()


class Coordinator:
    """The rules, for as long as one assignment of the slot is believed in."""

    def __init__(self, broker: Broker, slot_epoch: int) -> None:
        self.world, self.broker, self.slot_epoch = broker.world, broker, slot_epoch
        settings, now = self.world.plan.settings, self.world.timeline.now
        state = self.world.quorum.group
        self.group = Group(GROUP, settings, slot_epoch=slot_epoch)
        if state is not None:
            self.group = Group.loaded(GROUP, state, settings, now=now, slot_epoch=slot_epoch)
        self._waiting: dict[int, tuple[Connection, Ask]] = {}
        self._forgotten: set[int] = set()
        self._line: deque[SavePlan | tuple[Commit, int]] = deque()
        self._is_busy, self._tick_at, self._asking = False, float("inf"), -1
        self._is_leaving = False
        self._plan_tick()

    @property
    def is_current(self) -> bool:
        return self.broker.coordinator is self

    # -- requests --------------------------------------------------------------------------

    def is_meant(self, ask: Ask) -> bool:
        """Under its epoch; to whom it gives out ids that fence others, the quorum has to say so."""
        if coordinator.is_of_another_tenure(ask.slot_epoch, self.slot_epoch):
            return False
        is_first = isinstance(ask, JoinGroup) and not ask.member_id
        is_static = is_first and ask.instance_id is not None
        return not is_static or self.slot_epoch == self.world.quorum.slot.epoch

    def on_request(self, connection: Connection, ask: Ask) -> None:
        token = self.world.next_number()
        self._waiting[token] = connection, ask
        now, group = self.world.timeline.now, self.group
        self._asking, self._is_leaving = token, isinstance(ask, LeaveGroup)
        state = group.state
        if isinstance(ask, JoinGroup):
            self.world.checks.on_join(ask)
            self.world.crash_judge.on_join(ask, connection.process)
            effects = group.on_join(
                ask,
                token,
                client_id=connection.process.name,
                host="",
                new_member_id=f"m{token}",
                now=now,
            )
        elif isinstance(ask, SyncGroup):
            effects = group.on_sync(ask, token, now=now)
        elif isinstance(ask, Heartbeat):
            effects = group.on_heartbeat(ask, token, now=now)
        elif isinstance(ask, LeaveGroup):
            effects = group.on_leave(ask, token, now=now)
        else:
            return self._on_commit(ask, token)
        if isinstance(ask, JoinGroup) and _is_filter_refused(effects):
            self.world.checks.on_filter_refused(ask, group, state)
        self._perform(effects)
        self._asking, self._is_leaving = -1, False
        return None

    def _on_commit(self, commit: Commit, token: int) -> None:
        member_id, generation, instance_id, number, *_ = commit
        refusal = self.group.commit_refusal(member_id, generation, instance_id, number)
        if refusal is None:
            self.group.note_commit(member_id, number)
            demand(self.group.state != "CompletingRebalance", f"{commit} while the leader plans")
            connection = self._waiting[token][0]
            is_elsewhere = self.world.checks.is_elsewhere(connection.process)
            is_late = not connection.is_open  # its process may be somewhere else by now
            demand(is_late or not is_elsewhere, f"{commit} of another {connection.process}")
            self._line.append((commit, token))
            self._pump()
        else:
            self._tell(token, Committed(refusal.code))

    def on_cut(self, connection: Connection) -> None:
        gone = [token for token, (through, _) in self._waiting.items() if through is connection]
        for token in gone:
            del self._waiting[token]
            self._forgotten.add(token)
            self.group.forget(token, now=self.world.timeline.now)
        self._perform([])

    # -- effects ---------------------------------------------------------------------------

    def _perform(self, effects: list[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, AnswerRequest):
                self._tell(int(str(effect.token)), effect.body)
            else:
                self._line.append(effect)
        self.group.check()
        self._plan_tick()
        self._pump()

    def _tell(self, token: int, body: object) -> None:
        demand(token not in self._forgotten, f"{body} for {token}, which was forgotten")
        demand(token in self._waiting, f"{body} for {token}, which was answered")
        connection, ask = self._waiting.pop(token)
        self.world.checks.on_answer(ask, body, is_put_out=self._is_put_out(token))
        self.world.crash_judge.on_answer(body, self.slot_epoch)
        connection.answer(ask, body, slot_epoch=self.slot_epoch)

    def _is_put_out(self, token: int) -> bool:
        """Whether it waited, and its answer is not that of a member that leaves."""
        return token != self._asking and not self._is_leaving

    def _plan_tick(self) -> None:
        if self.group.deadline < self._tick_at:
            self._tick_at = self.group.deadline
            self.world.timeline.at(self._tick_at, self._tick, self._tick_at)

    def _tick(self, planned: float) -> None:
        if not self.is_current or planned != self._tick_at:
            return
        self._tick_at = float("inf")
        now = self.world.timeline.now
        if self.group.deadline <= now:
            self._perform(self.group.on_tick(now))
            demand(self.group.deadline > now, "on_tick left something to do")
        self._plan_tick()

    # -- the line to the quorum ------------------------------------------------------------

    def _pump(self) -> None:
        if self._line and not self._is_busy and self.is_current:
            self._is_busy = True
            apply = self._apply if isinstance(self._line[0], SavePlan) else self._apply_commits
            self.world.timeline.after(self.world.save_seconds(), apply)

    def _apply_commits(self) -> None:
        """All that came one after the other: they share a command."""
        if not self.is_current:
            return
        tokens = []
        while self._line and not isinstance(self._line[0], SavePlan):
            commit, token = self._line.popleft()
            tokens.append(token)
            result = self.world.quorum.commit_offsets(commit, self.slot_epoch)
        self.world.timeline.after(self.world.delay(), self._on_commits, tokens, result)

    def _on_commits(self, tokens: list[int], result: object) -> None:
        if self._goes_on(result):
            for token in tokens:
                if token in self._waiting:
                    self._tell(token, Committed(ErrorCode.NONE))
            self._pump()

    def _apply(self) -> None:
        """The command reaches the quorum, also if its sender has died meanwhile."""
        save = self._line.popleft()
        assert isinstance(save, SavePlan), f"{save}"
        result: object = Refused(ErrorCode.INVALID_REQUEST, "too large, says chance")
        if not self.world.refuses_saves():
            command = save.command(
                slot_epoch=self.slot_epoch, changed_at_ms=0, crashed=crashed_of(save)
            )
            result = self.world.quorum.save(command)
            if isinstance(result, Done):
                self.world.crash_judge.on_saved(save, self.slot_epoch)
        self.world.timeline.after(self.world.delay(), self._on_result, save, result)

    def _on_result(self, save: SavePlan, result: object) -> None:
        if not self._goes_on(result):
            return
        now = self.world.timeline.now
        if isinstance(result, Refused):
            is_chance = result.code == ErrorCode.INVALID_REQUEST
            demand(is_chance, f"the quorum refuses {save}: {result.message}")
            error = InvalidCommand(result.message)
            self._perform(self.group.on_save_failed(save, error, now=now))
        else:
            self._perform(self.group.on_saved(save, now=now))

    def _goes_on(self, result: object) -> bool:
        """Whether the slot is this coordinator's still, as far as it knows now."""
        self._is_busy = False
        is_lost = isinstance(result, Refused) and result.code == ErrorCode.NOT_COORDINATOR
        if is_lost and self.is_current:
            self.broker.abandon()
        return self.is_current and not is_lost

    def abandon(self) -> None:
        error = NotCoordinator(f"slot epoch {self.slot_epoch} is over")
        self._asking = -1
        for effect in self.group.abandon(error):
            assert isinstance(effect, AnswerRequest), f"{effect}"
            self._tell(int(str(effect.token)), effect.body)
        for token, (_, ask) in list(self._waiting.items()):
            assert isinstance(ask, Commit), f"{ask} waits, and nobody knows"
            self._tell(token, Committed(ErrorCode.NOT_COORDINATOR))


def _is_filter_refused(effects: list[GroupEffect]) -> bool:
    """Whether one of these refuses a JoinGroup for its filter."""
    told = [effect.body for effect in effects if isinstance(effect, AnswerRequest)]
    return any(getattr(body, "error", 0) == ErrorCode.INCONSISTENT_GROUP_FILTER for body in told)
