"""What the metadata say of one transaction, a producer id in one of its epochs. Pure.

Owns `outcome_of`, by which leaders decide what to do with what is open in their logs. Only commits
are kept, until each partition that took part has its marker: what is neither open nor committed is
aborted (presumed abort, decision 0038). So nothing hangs for want of an answer.

Invariant: for one (producer id, epoch) the outcome moves only from AHEAD over OPEN to COMMITTED or
ABORTED, and from COMMITTED to ABORTED once it is settled, when no log has it open any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.image import MEMBERS_MAX
from raftmq.model import TransactionOutcome
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage, SharedVersions, TransactionState

# The last epoch of a producer id: the marker of a transaction carries the epoch after it.
LAST_EPOCH = PRODUCER_EPOCH_MAX - 1
MEMBER_EPOCH = 0  # a member's producer id serves one transaction, and never again
# How far the newest epoch may be ahead of these metadata. A broker is behind by milliseconds, and
# a transaction id has some ten epochs a second: a thousand is forged, and would lock the id's owner
# out of the partition.
EPOCHS_AHEAD_MAX = 1_000
PRODUCER_IDS_AHEAD_MAX = 1_000_000  # as above: 120 blocks of members


def outcome_of(image: MetadataImage, producer_id: int, producer_epoch: int) -> TransactionOutcome:
    """
    1. Of an id that nobody has given out yet, as far as is known here.
    2. Of a transaction id that is forgotten, of a producer without one, or of a producer id that
       its transaction id has left after its last epoch.
    3. The present transaction.
    4. Committed, and not settled yet in every partition.
    5. An earlier epoch; a later one, which these metadata do not show yet; one that cannot be.
    6. A member of a shared transaction: see `_of_member`.
    """
    transaction_id = transaction_id_of(image, producer_id)
    if transaction_id is None:
        return _of_no_id(producer_id - image.next_producer_id)  # cases 1 and 2
    state = image.transactions[transaction_id]
    if state.shared is not None:  # case 6
        return _of_member(state, state.shared, producer_id, producer_epoch)
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


def transaction_id_of(image: MetadataImage, producer_id: int) -> str | None:
    """Which transaction id has the producer id, or the block in which it is a member's."""
    found = image.transaction_ids.get(producer_id)
    if found is not None:  # the usual case
        return found
    found = image.transaction_ids.get(block_of(producer_id))
    # The first id of what would be its block may be that of a single producer.
    return found if found is not None and image.transactions[found].shared is not None else None


def present_of(state: TransactionState) -> tuple[int, int]:
    """(producer id, epoch) of the present transaction, or the next one; of a shared one the block
    of the version that is open, or (-1, -1).
    """
    if state.shared is None or state.shared.block < 0:
        return state.producer_id, state.producer_epoch
    return state.shared.block, MEMBER_EPOCH


def block_of(producer_id: int) -> int:
    """The block of members in which a producer id is, if it is a member's."""
    return producer_id - producer_id % MEMBERS_MAX


def is_listed(numbers: bytes, number: int) -> bool:
    """Whether a commit says that this member counts; `numbers` as in `SharedEnd`."""
    place, bit = divmod(number, 8)
    return place < len(numbers) and bool(numbers[place] >> bit & 1)


def _of_member(
    state: TransactionState, shared: SharedVersions, producer_id: int, producer_epoch: int
) -> TransactionOutcome:
    """
    1. Members have one epoch: another one is nobody's, and must not stay open.
    2. Of the version that is open; a later number is one that these metadata do not show yet.
    3. Of a committed one, if the commit lists it.
    4. All others are aborted: of an earlier opening, or not listed.
    """
    block = block_of(producer_id)
    if producer_epoch != MEMBER_EPOCH:  # case 1
        return TransactionOutcome.ABORTED
    number = producer_id - block
    if block == shared.block:  # case 2
        is_joined = number < shared.joined
        return TransactionOutcome.OPEN if is_joined else TransactionOutcome.AHEAD
    for commit in state.settling:  # case 3
        if commit.producer_id == block and is_listed(commit.numbers, number):
            return TransactionOutcome.COMMITTED
    return TransactionOutcome.ABORTED  # case 4


def lists_partition(
    image: MetadataImage, producer_id: int, producer_epoch: int, partition: tuple[bytes, int]
) -> bool:
    """Whether the commit of that transaction is kept for the sake of that partition."""
    state = image.transactions.get(transaction_id_of(image, producer_id) or "")
    if state is None:
        return False
    decided = producer_id if state.shared is None else block_of(producer_id)
    return any(
        (commit.producer_id, commit.producer_epoch) == (decided, producer_epoch)
        and partition in commit.partitions
        for commit in state.settling
    )


def _of_no_id(distance: int) -> TransactionOutcome:
    if distance < 0:
        return TransactionOutcome.ABORTED
    return _ahead(distance, PRODUCER_IDS_AHEAD_MAX)


def _ahead(distance: int, distance_max: int) -> TransactionOutcome:
    is_possible = distance <= distance_max
    return TransactionOutcome.AHEAD if is_possible else TransactionOutcome.FORGED
