"""Simulated producers and readers, who use any broker that believes to lead, also deposed ones.

Owns the values, each used once, and their outcomes: "ok", "failed" (it never happened) or unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.replication.leading import ACKS_ALL, Leading
from tests.simulation.replication.network import CLIENTS

if TYPE_CHECKING:
    from random import Random

    from raftmq.metadata.commands import PartitionId
    from tests.simulation.replication.leading import Outcome
    from tests.simulation.replication.world import World

ACKS = (ACKS_ALL, ACKS_ALL, ACKS_ALL, 0, 1, 2)


class Clients:
    """Attributes:
    outcomes: how often what was answered.
    is_closing: they begin nothing any more.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._values, self.is_closing = 0, False
        self._positions: dict[PartitionId, int] = {}
        self.outcomes = {"ok": 0, "failed": 0, "unknown": 0}

    def act(self) -> None:
        """One request, and another one soon."""
        world, chance = self._world, self._chance
        if self.is_closing:
            return
        key = chance.choice(world.keys)
        leaders = self.leaders(key)
        if leaders:
            role, dice = chance.choice(leaders), chance.random()
            if dice < 0.8:
                self.produce(role, chance.choice(ACKS))
            elif dice < 0.96:
                self._send(role, self._read, role)
            else:
                self._send(role, self._delete if dice < 0.98 else self._retain, role)
        world.timeline.after(chance.random() * 2 * world.plan.request_seconds, self.act)

    def leaders(self, key: PartitionId) -> list[Leading]:
        roles = [b.process.roles.get(key) for b in self._world.brokers if b.process]
        return [role for role in roles if isinstance(role, Leading)]

    def produce(self, role: Leading, acks: int) -> int:
        value = self.new_value()
        self._send(role, self._append, role, value, acks)
        return value

    def new_value(self) -> int:
        self._values += 1
        return self._values

    def _send(self, role: Leading, act: object, *arguments: object) -> None:
        link = (CLIENTS, role.process.broker_id)
        turn = role.process.turn
        self._world.network.send(link, turn, act, *arguments, may_double=False)

    def _append(self, role: Leading, value: int, acks: int) -> None:
        """At the broker; the answer comes now or later."""

        def reply(outcome: Outcome) -> None:
            link = (role.process.broker_id, CLIENTS)
            self._world.network.send(link, self._hear, value, outcome, may_double=False)

        if role.process.roles.get(role.key) is not role:
            reply("failed")
        else:
            role.on_produce(value, acks, reply)

    def _hear(self, value: int, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1
        if outcome == "failed":
            self._world.checks.refused.add(value)

    def _read(self, role: Leading) -> None:
        if role.process.roles.get(role.key) is role:
            position = self._positions.get(role.key, 0)
            back = max(0, position - self._chance.randint(0, 5))
            self._positions[role.key] = self._world.checks.on_read(role, back)

    def _delete(self, role: Leading) -> None:
        if role.process.roles.get(role.key) is role:
            role.delete_before(self._chance.randint(role.log.start, role.log.end))

    def _retain(self, role: Leading) -> None:
        if role.process.roles.get(role.key) is role:
            role.retain_from(self._chance.randint(role.log.start, role.log.end))
