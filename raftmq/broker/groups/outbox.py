"""What a group wants done, collected while it works on one input.

Owns the numbers of its saves, and knows how many of them nobody has told the outcome of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.groups.effects import Answer, Save

if TYPE_CHECKING:
    from raftmq.broker.groups.effects import GroupEffect, Token
    from raftmq.metadata.commands import Member
    from raftmq.wire.bodies import Body


class Outbox:
    """Attributes:
    newest_save: number of the last one; what became of earlier ones does not matter any more.
    """

    def __init__(self, group: str) -> None:
        self.newest_save = 0
        self._group, self._settled = group, 0
        self._effects: list[GroupEffect] = []

    @property
    def is_saving(self) -> bool:
        return self._settled < self.newest_save

    def answer(self, token: Token, body: Body) -> None:
        self._effects.append(Answer(token, body))

    def save(
        self,
        *,
        generation: int,
        protocol_type: str,
        protocol: str,
        leader: str,
        members: tuple[Member, ...],
    ) -> None:
        self.newest_save += 1
        save = Save(
            self.newest_save, self._group, generation, protocol_type, protocol, leader, members
        )
        self._effects.append(save)

    def settle(self, save: Save) -> None:
        assert save.number == self._settled + 1, f"{save.number} is settled out of its turn"
        self._settled = save.number

    def take(self) -> list[GroupEffect]:
        taken, self._effects = self._effects, []
        return taken
