"""The histories of the quorum's clients: registers, unique writes, producer id blocks.

Registers are for the linearizability checker; unique writes must survive once they are
acknowledged; each block of producer ids belongs to one client.
"""

from __future__ import annotations

from itertools import count, pairwise
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.checkers.linearizable import check
from jepsen_like.checkers.registers import Outcome
from raftmq.metadata.commands import (
    AllocateProducerIds,
    CommandId,
    PartitionId,
    decode_command,
)
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from jepsen_like.checkers.registers import Operation
    from raftmq.metadata.image import MetadataImage

TOPIC = b"t" * 16
NOTHING = -1  # a register before its first write


class Block(NamedTuple):
    """Producer ids that a client requested; `first` is None until it is answered."""

    client: int
    epoch: int
    sequence: int
    count: int
    first: int | None


class ClientHistory:
    """All that clients did, and were told.

    Attributes:
        acked: unique writes that were acknowledged: (group, partition) and the offset.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.acked: dict[tuple[str, int], int] = {}
        self.blocks: dict[tuple[int, int], Block] = {}
        self.clock = count(1)
        self.values, self.partitions = count(1), count()
        self.unknown = self.refused = 0

    @property
    def done(self) -> int:
        known = [op for op in self.operations if op.outcome is Outcome.OK]
        answered = [block for block in self.blocks.values() if block.first is not None]
        return len(known) + len(answered) + len(self.acked)

    def judge_history(self) -> None:
        violation = check(self.operations, initial=NOTHING)
        demand(violation is None, f"{violation}")

    def judge_image(self, name: str, image: MetadataImage) -> None:
        """No acknowledged write is lost."""
        for (group, partition), offset in self.acked.items():
            found = image.offsets.get(group, {}).get(PartitionId(TOPIC, partition))
            demand(
                found is not None and found.offset == offset,
                f"{name}: {offset} was acknowledged for {group}-{partition}, there is {found}",
            )

    def judge_blocks(self, commands: list[bytes], image: MetadataImage) -> None:
        """Every answer is of its own range, and every id in the log was given out once."""
        given: dict[CommandId, int] = {}
        for command in map(decode_command, commands):
            if isinstance(command.command, AllocateProducerIds) and command.command_id:
                given[command.command_id] = command.command.count
        demand(
            image.next_producer_id == sum(given.values()),
            f"{sum(given.values())} producer ids were asked for once,"
            f" {image.next_producer_id} are given out",
        )
        ranges = sorted((b.first, b.count, b) for b in self.blocks.values() if b.first is not None)
        for (first, size, block), (following, _, other) in pairwise(ranges):
            demand(first + size <= following, f"{block} and {other} overlap")
