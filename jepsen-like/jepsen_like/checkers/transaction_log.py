"""What the final log of a partition says of each record in a transaction: commit, abort or open.

Owns the way from markers to records: a marker ends what its producer id has sent since the marker
before. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.checkers.transaction_columns import Mark

if TYPE_CHECKING:
    from jepsen_like.checkers.columns import KeyAccount, Replica


def marks_of(key: KeyAccount) -> dict[int, Mark]:
    """Of the longest log: that all agree is judged elsewhere."""
    longest = max(key.replicas.values(), key=lambda replica: replica.log_end)
    return _marks(longest)


def _marks(replica: Replica) -> dict[int, Mark]:
    lengths = {batch[0]: len(batch[3]) for batch in replica.batches}
    marks: dict[int, Mark] = {}
    unended: dict[int, list[int]] = {}  # by producer id, offsets
    events: list[tuple[int, int, bool | None]] = [
        (base, pid, None) for base, pid, _ in replica.transactional
    ]
    events += [(offset, pid, is_commit) for offset, pid, _, is_commit in replica.markers]
    for offset, pid, is_commit in sorted(events, key=lambda event: event[0]):
        if is_commit is None:
            unended.setdefault(pid, []).extend(range(offset, offset + lengths[offset]))
        else:
            mark = Mark.COMMIT if is_commit else Mark.ABORT
            marks.update(dict.fromkeys(unended.pop(pid, ()), mark))
    for offsets in unended.values():
        marks.update(dict.fromkeys(offsets, Mark.OPEN))
    return marks
