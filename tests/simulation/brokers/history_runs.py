"""One run of a named producer, as events of a history.

One send for each partition, each by a process of its own, with all rows that the generation has
there. A run that was broken off has an unknown outcome; the offsets of single rows are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.history.event import ACKS_ALL, Type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.simulation.brokers.history import History
    from tests.simulation.brokers.ledger import Spot


class Label(NamedTuple):
    """Whose rows they are, and which."""

    name: str
    generation: int


class Run:
    """`rows`: values by partition, in their order."""

    def __init__(
        self, history: History, label: Label, rows: Mapping[Spot, Sequence[bytes]]
    ) -> None:
        self._recorder = history.recorder
        self._offsets: dict[Spot, list[int | None]] = {
            spot: [None] * len(values) for spot, values in rows.items()
        }
        self._processes = {spot: history.new_process() for spot in rows}
        for spot, process in self._processes.items():
            texts = [value.decode() for value in rows[spot]]
            asked: dict[str, Any] = {"key": str(spot), "acks": ACKS_ALL, "values": texts}
            self._recorder.invoke(
                process, "send", {**asked, "is_idempotent": True, **label._asdict()}
            )

    def on_row(self, spot: Spot, index: int, offset: int) -> None:
        """It was told where this row stands."""
        self._offsets[spot][index] = offset

    def on_end(self, why: str = "") -> None:
        """`why` it was broken off; nothing: all of its rows are there."""
        kind = Type.INFO if why else Type.OK
        for spot, process in self._processes.items():
            told = {"offsets": self._offsets[spot]}
            self._recorder.record(process, kind, "send", told, error=why or None)
