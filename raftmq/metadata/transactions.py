"""What the metadata say of one transaction, a producer id in one of its epochs. Pure.

Owns `outcome_of`, by which leaders decide what to do with what is open in their logs. Only commits
are kept, until each partition that took part has its marker: what is neither open nor committed is
aborted (presumed abort, decision 0038). So nothing hangs for want of an answer.

Invariant: for one (producer id, epoch) the outcome moves only from AHEAD over OPEN to COMMITTED or
ABORTED, and from COMMITTED to ABORTED once it is settled, when no log has it open any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.model import TransactionOutcome

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage

# How far the newest epoch may be ahead of these metadata. A broker is behind by milliseconds, and
# a transaction id has some ten epochs a second: a thousand is forged, and would lock the id's owner
# out of the partition.
EPOCHS_AHEAD_MAX = 1_000
PRODUCER_IDS_AHEAD_MAX = 1_000_000  # as above: ten blocks of the largest size


def outcome_of(image: MetadataImage, producer_id: int, producer_epoch: int) -> TransactionOutcome:
    """
    1. Committed, and not settled yet in every partition.
    2. Of an id that nobody has given out yet, as far as is known here.
    3. Of a transaction id that is forgotten, of a producer without one, or of a producer id that
       its transaction id has left after its last epoch.
    4. The present epoch; an earlier one; a later one, which these metadata do not show yet.
    """
    transaction_id = image.transaction_ids.get(producer_id)
    if transaction_id is None:
        return _of_no_id(producer_id - image.next_producer_id)  # cases 2 and 3
    state = image.transactions[transaction_id]
    for commit in state.settling:
        if (commit.producer_id, commit.producer_epoch) == (producer_id, producer_epoch):  # case 1
            return TransactionOutcome.COMMITTED
    if state.producer_id != producer_id:  # case 3
        return TransactionOutcome.ABORTED
    ahead = producer_epoch - state.producer_epoch  # case 4
    if ahead == 0:
        return TransactionOutcome.OPEN
    if ahead < 0:
        return TransactionOutcome.ABORTED
    return _ahead(ahead, EPOCHS_AHEAD_MAX)


def _of_no_id(distance: int) -> TransactionOutcome:
    if distance < 0:
        return TransactionOutcome.ABORTED
    return _ahead(distance, PRODUCER_IDS_AHEAD_MAX)


def _ahead(distance: int, distance_max: int) -> TransactionOutcome:
    is_possible = distance <= distance_max
    return TransactionOutcome.AHEAD if is_possible else TransactionOutcome.FORGED
