"""One consumer's reads of one partition, as events of a history.

Owns which process reads: a number stands for one continuous stretch, in which every record follows
the one before. After a jump it is another process, of which only the beginning is promised; a
consumer of several partitions is one process for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from tests.simulation.brokers.history import History
    from tests.simulation.brokers.ledger import Spot

BEGINNING, ELSEWHERE = "beginning", "end"
NOWHERE = -1


class Reader:
    """Attributes:
    following: the offset that comes next; NOWHERE before the first record.
    """

    def __init__(self, history: History, spot: Spot) -> None:
        self._history, self._key = history, str(spot)
        self._process = NOWHERE
        self._records: list[list[Any]] = []  # of a poll that is under way
        self.following = NOWHERE

    def begin(self, *, from_beginning: bool) -> None:
        """Anew, and elsewhere than it would go on."""
        self.flush()
        self._process, self.following = self._history.new_process(), NOWHERE
        start = BEGINNING if from_beginning else ELSEWHERE
        value = {"keys": [self._key], "from": start}
        for kind in (Type.INVOKE, Type.OK):
            self._history.recorder.record(self._process, kind, "assign", value)

    # One question, one answer

    def ask(self, offset: int) -> None:
        if offset != self.following:
            self.begin(from_beginning=not offset)
            self.following = offset
        self._history.recorder.invoke(self._process, "poll")

    def get(self, records: list[list[Any]], high_watermark: int | None = None) -> None:
        """Offsets and values, none before what was asked for.

        `high_watermark`: as a consumer of the SDK says. That of a single fetch may go back when
        the leader changes.
        """
        told = [] if high_watermark is None else [[self._key, high_watermark]]
        value = {"records": [[self._key, records]] if records else [], "high_watermarks": told}
        self._history.recorder.record(self._process, Type.OK, "poll", value)
        if records:
            self.following = records[-1][0] + 1

    def skip(self, offset: int) -> None:
        """Offsets before it that were not recorded hold no record."""
        if self.following != NOWHERE:
            self.following = max(self.following, offset)

    def miss(self, why: str) -> None:
        self._history.recorder.record(self._process, Type.FAIL, "poll", error=why)

    # Many records, one by one

    def note(self, offset: int, value: str) -> None:
        if not self._records:
            self._history.recorder.invoke(self._process, "poll")
        self._records.append([offset, value])
        self.following = offset + 1

    def flush(self, high_watermark: int | None = None) -> None:
        """What was noted is one poll."""
        if self._records:
            records, self._records = self._records, []
            self.get(records, high_watermark)
