"""Rules of how crashes are counted, taken away one at a time.

How many worlds find one says `python -m tests.simulation.poison --bug NAME --seeds 300`, with
`--plain` of those that say `is_plain`. One is not
here: a crash that two coordinators count. The first takes the note away with which it counts for a
record, so that the second counts an accident, of which there are two at the most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from raftmq.client.consumer.group_consumption import SuspectRecords
from raftmq.client.processing.order import ProcessingOrder
from raftmq.metadata.apply import crashes
from raftmq.metadata.commands import PartitionId
from raftmq.metadata.image import Crashes
from tests.simulation.planting import demand_called, planted
from tests.simulation.poison import worker, world
from tests.simulation.poison.worker import Worker
from tests.simulation.poison.world import World, failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.processing.order import RecordInHand
    from raftmq.metadata.commands import CrashedMember
    from tests.simulation.planting import Patch


# -- rules taken away ------------------------------------------------------------------------------


def all_crashes_count_alike(patch: Patch) -> None:
    """Also those beside others count without end."""
    patch.setattr(crashes, "ACCIDENTS_MAX", 1_000)


def all_in_hand_is_blamed(patch: Patch) -> None:
    """Not only the record that was alone."""
    counted = world.crashes_counted

    def blame_all(offsets: Any, crashed: Any, now_ms: int) -> Any:
        for member in crashed:
            is_alone = any(key for key, by in _notes(offsets, member) if by == member.member_id)
            if not is_alone:
                offsets = counted(offsets, [member], now_ms)
                continue
            for key, _ in _notes(offsets, member):
                count = offsets[key].crashes.count if offsets[key].crashes else 0
                offsets = offsets.set(key, replace(offsets[key], crashes=Crashes(count + 1)))
        return offsets

    patch.setattr(world, "crashes_counted", blame_all)


def whoever_was_alone_there_once(patch: Patch) -> None:
    """The note of another member counts for who has the partition now."""
    counted = world.crashes_counted

    def by_anybody(offsets: Any, crashed: Any, now_ms: int) -> Any:
        for member in crashed:
            for key, by in _notes(offsets, member):
                if by:
                    mine = Crashes(offsets[key].crashes.count, member.member_id)
                    offsets = offsets.set(key, replace(offsets[key], crashes=mine))
            offsets = counted(offsets, [member], now_ms)
        return offsets

    patch.setattr(world, "crashes_counted", by_anybody)


def _notes(offsets: Any, member: CrashedMember) -> list[tuple[PartitionId, str | None]]:
    """Who handles a record alone, by partition that the member held."""
    held = [PartitionId(part.topic_id, n) for part in member.held for n in part.numbers]
    return [(key, crashes._alone_by(offsets[key])) for key in held if key in offsets]


def the_count_outlives_its_record(patch: Patch) -> None:
    """It stays when the committed offset moves."""
    patch.setattr(crashes, "_is_same_record", lambda there, commit: True)


def the_note_begins_anew(patch: Patch) -> None:
    """To note that a record is handled alone is taken for progress."""
    patch.setattr(crashes, "_is_same_record", lambda there, commit: False)


def two_crashes_are_enough(patch: Patch) -> None:
    """A policy of one attempt condemns what was in hand beside others."""
    patch.setattr(worker, "is_poison", lambda crashes, attempts: crashes >= attempts)


def alone_beside_others(patch: Patch) -> None:
    """What is begun does not end first, and others are begun meanwhile: one of them kills."""

    def begin(self: ProcessingOrder) -> RecordInHand | None:
        self._alone, begun, self._begun = None, self._begun, 0
        found = plain(self)
        self._begun += begun
        return found

    plain = ProcessingOrder.begin
    patch.setattr(ProcessingOrder, "begin", begin)
    patch.setattr(ProcessingOrder, "end_alone", lambda self, one: None)
    patch.setattr(Worker, "_work", lambda self, one, tenure: self.at_work.append((one, tenure)))


def others_begin_before_it_is_committed(patch: Patch) -> None:
    """What was alone is done, its note still stands, and the next record kills."""
    patch.setattr(Worker, "_has_committed", lambda self, tenure, offset: True)


def to_leave_is_to_crash(patch: Patch) -> None:
    """A worker that is stopped again and again condemns what it has in hand."""

    def on_left(self: World, member_id: str) -> None:
        self.note_crash(member_id, self.members[member_id])
        left(self, member_id)

    left = World.on_left
    patch.setattr(World, "on_left", on_left)


def nothing_is_handled_alone(patch: Patch) -> None:
    """The count stops, and nothing is ever set aside."""
    patch.setattr(worker, "is_suspect", lambda crashes: False)


def the_note_is_not_taken_back(patch: Patch) -> None:
    """Of a consumer, where what was handed out is not finished: what is done is no news."""

    async def take_back(self: SuspectRecords) -> None:
        if self._noted is not None:
            self._noted = None
            await self._commits.commit_each()

    patch.setattr(SuspectRecords, "_take_back", take_back)


def what_was_not_handed_out_was_not_noted(patch: Patch) -> None:
    """Of a consumer: the answer was lost, or the batch was revoked meanwhile."""

    async def note(self: SuspectRecords, batch: Any) -> bool:
        self._noted, is_noted = None, await plain(self, batch)
        if not is_noted:
            self._noted = None
        return is_noted

    plain = SuspectRecords.note
    patch.setattr(SuspectRecords, "note", note)


def what_waits_is_passed_without_end(patch: Patch) -> None:
    """Each crash of a record behind it counts for it, and not only one."""
    patch.setattr(worker, "is_passed", lambda crashes, attempts: True)


def what_passes_is_noted_itself(patch: Patch) -> None:
    """As if all before it were done."""
    patch.setattr(Worker, "_first", lambda self, one, **_: one.record.offset)


class Case(NamedTuple):
    """A bug, and a world that finds it."""

    plant: Callable[[Patch], None]
    seed: int
    is_plain: bool = False  # the world's programs have consumers

    @property
    def found(self) -> str | None:
        return failure(self.seed, is_plain=self.is_plain)


BUGS: dict[str, Case] = {
    case.plant.__name__: case
    for case in (
        Case(all_crashes_count_alike, 2),
        Case(all_in_hand_is_blamed, 11),
        Case(whoever_was_alone_there_once, 171),
        Case(the_count_outlives_its_record, 1),
        Case(the_note_begins_anew, 0),
        Case(two_crashes_are_enough, 25),
        Case(alone_beside_others, 3),
        Case(others_begin_before_it_is_committed, 40),
        Case(to_leave_is_to_crash, 34),
        Case(nothing_is_handled_alone, 0),
        Case(what_waits_is_passed_without_end, 207),
        Case(what_passes_is_noted_itself, 3),
        Case(the_note_is_not_taken_back, 4, is_plain=True),
        Case(what_was_not_handed_out_was_not_noted, 4, is_plain=True),
    )
}


def is_caught(name: str) -> bool:
    case = BUGS[name]
    with planted(case.plant) as calls:
        found = case.found
    demand_called(name, calls)
    return bool(found)
