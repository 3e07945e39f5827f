"""What the owners of transaction ids share: keys that are copied, numbers, versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jepsen_like.workloads.bench import Bench

GROUP = "copying"
TIMEOUT_MS = 3_000  # of transactions: short, as what a crash leaves behind holds up readers so long
# Of members: beyond the session, so that the group goes on while a commit is on its way.
MEMBER_TIMEOUT_MS = 20_000


@dataclass(frozen=True, kw_only=True)
class TransactionBench:
    """Attributes:
    inputs, outputs: keys; members of the group write a result to outputs for each input.
    input_topic: of all inputs.
    numbers: of transactions; none is given twice.
    versions: by id, the next one: a version is tried again until somebody was told of its commit.
    """

    bench: Bench
    input_topic: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    numbers: Iterator[int] = field(default_factory=count)
    versions: dict[str, int] = field(default_factory=dict)

    def version(self, name: str) -> int:
        return self.versions.setdefault(name, 0)

    def on_committed(self, name: str, version: int | None) -> None:
        if version is not None:
            self.versions[name] = max(self.version(name), version + 1)
