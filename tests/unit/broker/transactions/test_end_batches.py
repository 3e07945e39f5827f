"""Which ends share a command, and what each of them is told: the rules alone.

A11.3.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftmq.broker.groups.batches import LoneCommand, shared_by
from raftmq.broker.transactions.ends import (
    BATCH_BYTES_MAX,
    BLOCKS_MAX,
    EndEntry,
    blocks_of,
    bytes_of,
    outcome_of_end,
    reply_to_end,
)
from raftmq.errors import ErrorCode, NotCoordinator
from raftmq.metadata.apply.transaction_checks import ENDS_MAX
from raftmq.metadata.commands import (
    CommandId,
    DeleteTransactions,
    EndOutcome,
    EndTransactions,
    StoredOffset,
    TransactionEnd,
    TransactionOffsets,
    TransactionsEnded,
    encode_command,
)
from raftmq.model import AbortReason

TOPIC = b"t" * 16


def entry(
    name: str = "a", epoch: int = 0, *, partitions: int = 0, offsets: int = 0, metadata: str = ""
) -> EndEntry:
    stored = tuple(StoredOffset(TOPIC, each, 1 << 62, 9, metadata, 1) for each in range(offsets))
    end = TransactionEnd(
        transaction_id=name,
        producer_id=1,
        producer_epoch=epoch,
        is_commit=True,
        owner=b"w" * 16,
        partitions=tuple((TOPIC, each) for each in range(partitions)),
        groups=(TransactionOffsets("g" * 200, 1 << 30, "m" * 80, None, stored),) if offsets else (),
    )
    return EndEntry(end, 5, lambda _outcome: None)


ENTRIES = st.builds(
    entry,
    st.sampled_from("abcdefgh"),
    st.integers(0, 3),
    partitions=st.sampled_from([0, 1, 30, 900, 2_000]),
    offsets=st.sampled_from([0, 1, 700]),
    metadata=st.sampled_from(["", "m" * 300]),
)


@given(st.lists(ENTRIES, min_size=1, max_size=30), st.sets(st.integers(1, 29)))
def test_every_line_goes_in_order(line: list[EndEntry], withdrawn: set[int]) -> None:
    """No command is beyond its limits, unless it is a single end; none holds two transactions of
    an id; none is left out, and none that was withdrawn goes."""
    for at in withdrawn:
        if at < len(line):
            line[at].is_withdrawn = True
    waiting, sent = list(line), []
    while waiting:
        if waiting[0].is_withdrawn:
            waiting.pop(0)
            continue
        batch, count = shared_by(waiting)
        command = batch.command(slot=3, slot_epoch=7)
        assert isinstance(command, EndTransactions)
        ends = command.ends
        encode_command(command, CommandId(1, 1, 1))
        if len(ends) > 1:
            assert len(ends) <= ENDS_MAX
            assert sum(map(blocks_of, ends)) <= BLOCKS_MAX
            assert sum(map(bytes_of, ends)) <= BATCH_BYTES_MAX
        asked = {(one.transaction_id, one.producer_epoch) for one in ends}
        assert len({name for name, _ in asked}) == len(asked)
        sent += ends
        waiting = waiting[count:]
    assert sent == [each.end for each in line if not each.is_withdrawn]


def test_at_most_so_many_ends_share_a_command() -> None:
    """The rest goes with the next one."""
    line = [entry(f"id-{number}") for number in range(ENDS_MAX + 5)]
    assert shared_by(line)[1] == ENDS_MAX


def test_copies_of_one_end_share_a_command() -> None:
    """Of several leaders that are held up by it; the next transaction of the id does not."""
    line = [entry("a"), entry("b"), entry("a"), entry("a", 1)]
    assert shared_by(line)[1] == 3


def test_another_change_is_applied_in_between() -> None:
    """Ends before a deletion are not sent after it."""
    lone = LoneCommand(DeleteTransactions(3, 7, ()), lambda _outcome: None)
    assert shared_by([entry("a"), lone, entry("b")])[1] == 1


def test_the_size_of_an_end_is_no_less_than_it_takes() -> None:
    """So that one that is let in fits into a command."""
    for one in (
        entry("é" * 255, 32_000),
        entry(partitions=2_000),
        entry(offsets=5_000),
        entry(offsets=200, metadata="é" * 2_048),
    ):
        command = EndTransactions(3, 7, (one.end,), 1 << 41)
        assert len(encode_command(command, CommandId(1, 1, 1))) <= one.size + 100


def test_each_end_gets_its_own_part() -> None:
    """What the command does not list was decided as asked."""
    first, second = entry("a", 4), entry("b")
    batch, _ = shared_by([first, second])
    refused = EndOutcome(1, ErrorCode.PRODUCER_FENCED, "opened since")
    result = TransactionsEnded((refused,))
    usual = outcome_of_end(first.end, batch.part_of(result, first))  # type: ignore[arg-type]
    assert (usual.is_committed, usual.producer_id, usual.producer_epoch) == (True, 1, 5)
    other = outcome_of_end(second.end, batch.part_of(result, second))  # type: ignore[arg-type]
    assert reply_to_end(other).error == ErrorCode.PRODUCER_FENCED


def test_a_commit_that_was_aborted_is_no_success() -> None:
    """Planted bug: retry_hears_done."""
    outcome = EndOutcome(
        0, is_committed=False, is_repeated=True, reason=AbortReason.TIMEOUT, producer_id=1,
        producer_epoch=2,
    )  # fmt: skip
    reply = reply_to_end(outcome)
    assert (reply.is_committed, reply.reason) == (False, AbortReason.TIMEOUT)
    assert reply_to_end(NotCoordinator("gone")).error == ErrorCode.NOT_COORDINATOR
