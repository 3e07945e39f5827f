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
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage

# The last epoch of a producer id: the marker of a transaction carries the epoch after it.
LAST_EPOCH = PRODUCER_EPOCH_MAX - 1
# How far the newest epoch may be ahead of these metadata. A broker is behind by milliseconds, and
# a transaction id has some ten epochs a second: a thousand is forged, and would lock the id's owner
# out of the partition.
EPOCHS_AHEAD_MAX = 1_000
PRODUCER_IDS_AHEAD_MAX = 1_000_000  # as above: ten blocks of the largest size


def outcome_of(image: MetadataImage, producer_id: int, producer_epoch: int) -> TransactionOutcome:
    """
    1. Of an id that nobody has given out yet, as far as is known here.
    2. Of a transaction id that is forgotten, of a producer without one, or of a producer id that
       its transaction id has left after its last epoch.
    3. The present transaction.
    4. Committed, and not settled yet in every partition.
    5. An earlier epoch; a later one, which these metadata do not show yet; one that cannot be.
    """
    transaction_id = image.transaction_ids.get(producer_id)
    if transaction_id is None:
        return _of_no_id(producer_id - image.next_producer_id)  # cases 1 and 2
    state = image.transactions[transaction_id]
    is_present_id = state.producer_id == producer_id
    if is_present_id and state.producer_epoch == producer_epoch:  # case 3
        return TransactionOutcome.OPEN
    for commit in state.settling:
        if (commit.producer_id, commit.producer_epoch) == (producer_id, producer_epoch):  # case 4
            return TransactionOutcome.COMMITTED
    ahead = producer_epoch - state.producer_epoch  # case 5
    if ahead < 0 or not is_present_id:  # case 2
        return TransactionOutcome.ABORTED
    if producer_epoch > LAST_EPOCH:  # it would have no marker
        return TransactionOutcome.FORGED
    return _ahead(ahead, EPOCHS_AHEAD_MAX)


def lists_partition(
    image: MetadataImage, producer_id: int, producer_epoch: int, partition: tuple[bytes, int]
) -> bool:
    """Whether the commit of that transaction is kept for the sake of that partition."""
    state = image.transactions.get(image.transaction_ids.get(producer_id, ""))
    return any(
        (commit.producer_id, commit.producer_epoch) == (producer_id, producer_epoch)
        and partition in commit.partitions
        for commit in (state.settling if state is not None else ())
    )


def _of_no_id(distance: int) -> TransactionOutcome:
    if distance < 0:
        return TransactionOutcome.ABORTED
    return _ahead(distance, PRODUCER_IDS_AHEAD_MAX)


def _ahead(distance: int, distance_max: int) -> TransactionOutcome:
    is_possible = distance <= distance_max
    return TransactionOutcome.AHEAD if is_possible else TransactionOutcome.FORGED
