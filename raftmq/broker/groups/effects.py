"""What the rules of a group ask their surroundings to do. Data only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.metadata.commands import SaveGroup

if TYPE_CHECKING:
    from collections.abc import Hashable

    from raftmq.metadata.commands import Member
    from raftmq.wire.bodies import Body

Token: TypeAlias = "Hashable"  # names a request that waits for its answer; no two are the same


class Answer(NamedTuple):
    """Tell whoever waits under `token`. Each token is answered once, unless it was forgotten."""

    token: Token
    body: Body  # the reply that belongs to the request


class Save(NamedTuple):
    """Bring this into the metadata, behind everything that the group asked for before.

    Owed in return, in the order of the numbers: `on_saved` once it stands there, `on_save_failed`
    once it certainly never will; neither if the slot is lost, then `abandon`.
    """

    number: int  # counts up within the life of one object
    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[Member, ...]  # none: the group is empty

    def command(self, *, slot_epoch: int, changed_at_ms: int) -> SaveGroup:
        return SaveGroup(
            slot_epoch=slot_epoch,
            group=self.group,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self.members,
            changed_at_ms=changed_at_ms,
        )


GroupEffect: TypeAlias = Answer | Save
