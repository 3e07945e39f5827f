"""The history of a world of transactions: values are numbers, logs tell of their transactions.

Owns what differs from that of other worlds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import NODE, WATCH, Type
from jepsen_like.nodes.logs.replicas import add_batch
from jepsen_like.workloads.keys import key_of
from jepsen_like.workloads.transaction_bench import GROUP
from raftmq.wire.batch.header import iter_batches
from tests.simulation.brokers.examination import content_of, replicas_of
from tests.simulation.brokers.history import History
from tests.simulation.transacting.helpers import RESULTS

if TYPE_CHECKING:
    from raftmq.partition.replica import Replica
    from tests.simulation.transacting.world import TransactionWorld


class TransactionHistory(History):
    _world: TransactionWorld

    def take_replicas(self) -> None:
        self._replicas_from = len(self.recorder.events)
        # Results of the helpers are judged apart: no event tells of them.
        spots = [spot for spot in self._world.spots() if spot.topic != RESULTS]
        are_whole = dict.fromkeys(("partitions", "led", "whole"), len(spots))
        self.recorder.record(WATCH, Type.OK, "isr", are_whole)
        for spot in spots:
            for host, replica in replicas_of(self._world, spot).items():
                value = {"key": str(spot), **_content(replica)}
                self.recorder.record(NODE, Type.OK, "replica", value, node=int(host[1:]))

    def take_rest(self) -> None:
        """When no client is left: what is stable, what is unsettled, where the group stands."""
        world, image = self._world, self._world.newest_image()
        ends = []
        for spot in world.spots():
            found = replicas_of(world, spot).values()
            leader = next(replica for replica in found if replica.leader is not None)
            ends.append([str(spot), leader.last_stable_offset, leader.high_watermark])
        unsettled = [name for name, state in image.transactions.items() if state.settling]
        told = {"ends": ends, "unsettled": unsettled}
        self.recorder.record(WATCH, Type.OK, "stable", told)
        names = {topic_id: name for (name, _), topic_id in world.topic_ids.items()}
        offsets = [
            [GROUP, key_of(names[topic_id], partition), one.offset]
            for (topic_id, partition), one in image.offsets.get(GROUP, {}).items()
        ]
        self.recorder.record(WATCH, Type.OK, "group-offsets", {"offsets": offsets})


def _content(replica: Replica) -> dict[str, Any]:
    start = replica.log.log_start_offset
    found: dict[str, list[Any]] = {"batches": []}
    data = content_of(replica, start)
    for position, header in iter_batches(data):
        add_batch(found, data[position : position + header.size])
    return {"log_start": start, "high_watermark": replica.high_watermark, **found}
