"""The invariants of consumer groups, checked with a view of all members and the metadata.

Owns the promises to programs: no two members work on one partition, offsets are committed by
current members only, and by each in order, a generation has one assignment, which is saved before
any member gets it, and its members one filter; each request is answered once; what a transaction
commits was read by nobody since (`transactions.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.effects import State
from raftmq.errors import ErrorCode
from raftmq.wire.messages.groups import JoinGroupReply, SyncGroupReply
from raftmq.wire.tag_clauses import expression_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.groups.group import Group
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.metadata.commands import GroupMemberRecord
    from raftmq.metadata.image import GroupState
    from raftmq.wire.bodies import Body
    from raftmq.wire.messages.groups import JoinGroup
    from tests.simulation.groups.asks import Ask, Commit
    from tests.simulation.groups.process import Process
    from tests.simulation.groups.transactions import End, Reading

Who = tuple[bool, str]


class Violation(Exception):
    """A promise was broken."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


def who(member: GroupMemberRecord) -> Who:
    """A static member is the same whichever process it is."""
    return member.instance_id is not None, member.instance_id or member.member_id


class Checks:
    """Attributes:
    plans: what stood in the metadata, by generation.
    commits, ends, handed_out: how much was seen.
    filters_refused: joins with another filter than the other members have.
    """

    def __init__(self) -> None:
        self._saved_by: dict[int, int] = {}
        self._committed: dict[str, int] = {}  # the last number of each member
        self.plans: dict[int, dict[Who, bytes]] = {}
        self._readings: dict[Key, Reading] = {}  # the last one that has begun
        self.ends = 0
        self._filters: dict[str, str] = {}  # by the id of the member
        self.filters_refused = 0
        self.commits = self.handed_out = self.returns = self._handed_generation = 0

    def on_saved(self, group: GroupState, slot_epoch: int) -> None:
        self._saved_by.setdefault(group.generation, slot_epoch)
        plan = {who(member): member.assignment for member in group.members}
        known = self.plans.setdefault(group.generation, plan)
        demand(known == plan, f"generation {group.generation} was {known} and is {plan}")
        filters = {self._filters[member.member_id] for member in group.members}
        demand(filters <= {group.tags}, f"F: members of {group.generation} read by {filters}")

    def on_join(self, ask: JoinGroup) -> None:
        """It reaches a coordinator."""
        if ask.member_id:
            self._filters[ask.member_id] = expression_of(ask.tags)

    def on_filter_refused(self, ask: JoinGroup, group: Group, state: str) -> None:
        """It is refused for its filter; `state`: of the group when it came."""
        self.filters_refused += 1
        others = {
            self._filters[member.member_id]
            for member in group.describe().members
            if member.member_id != ask.member_id
            and (ask.instance_id is None or member.instance_id != ask.instance_id)
        }
        own = expression_of(ask.tags)
        demand(others - {own}, f"F: {ask} is refused, and {others} is what others read by")
        # Who was waited for is not any more, which may complete it.
        is_as_before = state in (group.state, "PreparingRebalance")
        demand(is_as_before, f"F: {ask} is refused, and the group that was {state} {group.state}")

    def on_commit(self, commit: Commit, group: GroupState | None) -> None:
        """It is about to be applied. Its generation may be one that is not saved and never will:
        then no member was given a partition since the one before.
        """
        members = {member.member_id for member in group.members} if group else set[str]()
        generation = group.generation if group else 0
        is_over = commit.generation < max(generation, self._handed_generation)
        is_member = commit.member_id in members or commit.generation > generation
        demand(is_member and not is_over, f"{commit} came to {generation} of {sorted(members)}")
        if commit.number:
            before = self._committed.get(commit.member_id, 0)
            demand(before <= commit.number, f"{commit} goes back behind number {before}")
            self._committed[commit.member_id] = commit.number
        self.commits += 1

    def on_read(self, reading: Reading) -> None:
        """It has its offset, as the quorum has it now."""
        self._readings[reading.key] = reading

    def on_end(self, end: End) -> None:
        """A transaction is committed with these offsets: nobody has read from before them since."""
        for reading in end.readings:
            last = self._readings[reading.key]
            demand(last is reading, f"X: {end}: since then {last} has begun")
        self.ends += 1

    def on_answer(self, ask: Ask, body: Body, *, is_put_out: bool) -> None:
        """A coordinator answers so, whether or not the answer arrives."""
        error = getattr(body, "error", ErrorCode.NONE)
        if isinstance(body, SyncGroupReply) and not error:
            self._on_part(ask, body)
        if isinstance(body, JoinGroupReply):
            self.returns += not body.must_sync_anew
        is_wrong = is_put_out and error == ErrorCode.UNKNOWN_MEMBER_ID
        demand(not is_wrong, f"{ask} waited, and was put out for it")

    def _on_part(self, ask: Ask, body: SyncGroupReply) -> None:
        generation, member_id = getattr(ask, "generation", -1), getattr(ask, "member_id", "")
        demand(generation in self.plans, f"a part of {generation} was told before it was saved")
        instance_id = getattr(ask, "instance_id", None)
        key = (instance_id is not None, instance_id or member_id)
        planned = self.plans[generation].get(key)
        demand(planned == body.assignment, f"{key} of {generation}: {planned}, {body.assignment}")
        self._handed_generation = max(self._handed_generation, generation)
        self.handed_out += 1

    def is_elsewhere(self, process: Process) -> bool:
        """Whether its generation has only its number in common with the one that was saved: told by
        a coordinator that was lost before, and it has not found out yet. Later coordinators have
        read it: what they tell is the one that was saved. Who joins again may have been answered
        already: what it claims is kept for it.
        """
        if process.membership.state is State.JOINING or process.told_by is None:
            return False
        saved_by = self._saved_by.get(process.membership.generation)
        return saved_by is not None and process.told_by < saved_by

    def after_event(self, processes: Iterable[Process]) -> None:
        """By the true clock no two members work on one partition, paused members included, until
        their own clock says that their session is over.

        Not checked: static members that were replaced and do not know it yet; members of a
        coordinator that was replaced and does not know it yet. Their commits fail.
        """
        processes = list(processes)
        owners: dict[Key, Process] = {}
        for process in processes:
            if not process.is_up or process.is_misled or is_replaced(process, processes):
                continue
            for key in process.works_on():
                other = owners.setdefault(key, process)
                if other is not process:
                    raise Violation(f"{process} and {other} both work on {key}")


def is_replaced(process: Process, others: Iterable[Process]) -> bool:
    """Another process has asked to be the same static member, not much earlier at least."""
    at = process.entered_at - process.world.plan.delay_seconds_max
    return process.instance_id is not None and any(
        other.entered_at >= at
        for other in others
        if other is not process and other.instance_id == process.instance_id
    )
