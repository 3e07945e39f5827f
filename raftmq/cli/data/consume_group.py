"""`raftmq consume -g GROUP`: a consumer group member that commits what it has printed.

Invariant: what was written to standard output is committed, and what --tags has left out before it,
and nothing else. Ctrl-C and SIGTERM
end it between two records; it commits those that were written, and leaves the group. A run that is
killed prints its last lines again when it is run anew. Lines of a partition that a rebalance moved
while they were written are not committed: the next owner prints them, too.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click

from raftmq.cli.clusters.connected import run_connected
from raftmq.cli.clusters.wait_reason import WaitedFor, WaitReason
from raftmq.cli.data.consume_run import (
    BATCH_RECORDS_MAX,
    LOOK_SECONDS,
    Sink,
    say_if_nothing_comes,
    start_of,
)
from raftmq.cli.data.log_bounds import check_all_read, find_bounds, give_up_silent
from raftmq.cli.data.offset_option import StartPlace
from raftmq.cli.data.record_format import write_readable, write_values
from raftmq.cli.data.stopping import Stopping
from raftmq.cli.data.topic_check import check_all_there
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import is_terminal
from raftmq.client.options import isolation_of
from raftmq.errors import IllegalGeneration, RaftmqError, RebalanceInProgress, UnknownMemberId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.cli.data.consume_run import ConsumeOrder
    from raftmq.cli.data.log_bounds import Key
    from raftmq.cli.data.record_format import Format
    from raftmq.client.client import Client
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Batches, Consumer
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.group.effects import Rebalance


# Without records, until the position behind the last one (past control batches, and what is left
# out) is committed: soon enough that `group lag` falls to 0 while a person looks, and one request a
# second at most.
PASSED_SECONDS = 1.0
# To write the rest of a record after Ctrl-C: a reader that takes nothing for a second is taken to
# be stuck, and its half line is not committed.
FINISH_SECONDS_MAX = 1.0


def check_group_wish(wish: ConsumeOrder) -> None:
    """Raises click.UsageError: an option that contradicts a group."""
    if wish.partitions:
        raise click.UsageError("-p: a group deals out its partitions itself; leave -g or -p out")
    if wish.begin.place in (StartPlace.OFFSET, StartPlace.LAST):
        raise click.UsageError(
            "-o: a group begins where it has stopped, and at earliest, latest or @TIME where it "
            "has not begun; `raftmq group reset-offsets` moves it"
        )


def run_consume_group(wish: ConsumeOrder, group: str, bootstrap: str | None, *, quiet: bool) -> int:
    """Raises click.UsageError, RaftmqError."""
    check_group_wish(wish)
    run_connected(lambda client: _consume(client, wish, group, quiet=quiet), bootstrap)
    return ExitCode.OK


async def _consume(client: Client, wish: ConsumeOrder, group: str, *, quiet: bool) -> None:
    stopping = Stopping()
    wanted = WaitedFor(wish.topics, group=group, is_quorum_needed=True)
    silence = WaitReason(client.admin, wanted, is_told=not quiet)
    async with anyio.create_task_group() as tasks:
        # Waits until the signal handlers are installed.
        await tasks.start(stopping.listen)
        with stopping.whole:
            async with silence.explained():
                await _write_wanted(client, wish, group, silence, stopping, quiet=quiet)
        tasks.cancel_scope.cancel()
    stopping.end()


async def _write_wanted(
    client: Client,
    wish: ConsumeOrder,
    group: str,
    silence: WaitReason,
    stopping: Stopping,
    *,
    quiet: bool,
) -> None:
    ends: GroupEnds | None = None
    with stopping.breaking_off():
        await check_all_there(client, wish.topics)
        if wish.until_end:
            isolation = isolation_of(wish.isolation_level)
            topics: dict[str, tuple[int, ...]] = dict.fromkeys(wish.topics, ())
            bounds, silent = await find_bounds(client.admin, topics, isolation=isolation)
            ends = GroupEnds({key: one.end for key, one in bounds.items()}, silent)
    # Ctrl-C while the topics were checked: no member has joined, there is nothing to leave.
    if stopping.is_wanted:
        return
    sink = Sink()
    silence.taken = lambda: sink.blocks
    form = wish.form or (write_readable if sink.is_terminal else write_values)
    is_told = is_terminal("stderr") and not quiet
    missed: dict[Key, str] = {}
    async with (
        client.consumer(
            *wish.topics,
            group=group,
            commit="manual",
            start=start_of(wish.begin),
            max_poll_records=BATCH_RECORDS_MAX,
            isolation_level=wish.isolation_level,
            tags=wish.tags,
            on_rebalance=_tell if is_told else None,
        ) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sink.watch)
        if not quiet and not wish.until_end:
            tasks.start_soon(say_if_nothing_comes, sink, waits_for(wish))
        if ends is not None:
            positions = partial(ends.unread, consumer)
            tasks.start_soon(give_up_silent, client.admin, positions, ends.give_up)
        if await write_all(consumer, wish, ends, form, sink, stopping) and ends is not None:
            missed = ends.missed(consumer)
        tasks.cancel_scope.cancel()
    check_all_read(missed)


def waits_for(wish: ConsumeOrder) -> str:
    """What is said where nothing comes."""
    what = "nothing comes" if wish.tags is None else "nothing that passes --tags comes"
    return (
        f"waiting for new records: {what} from where the group has stopped (-o, where it has"
        " committed nothing); `raftmq group lag` shows how far, -e ends at the end"
    )


class GroupEnds:
    """Where the partitions ended when the command was called.

    Args:
        silent: partitions whose ends are not known, and why.
    """

    def __init__(self, ends: Mapping[Key, int], silent: Mapping[Key, str]) -> None:
        self._ends, self._silent = dict(ends), dict(silent)

    def unread(self, consumer: Consumer) -> dict[Key, int | None]:
        """The positions of this member's partitions that are not read to their ends."""
        positions = {key: consumer.position(*key) for key in consumer.assignment}
        return {
            key: position
            for key, position in positions.items()
            if key not in self._silent and not self._is_read(key, position)
        }

    def is_reached(self, consumer: Consumer) -> bool:
        """Without any partitions this member waits for a rebalance."""
        return bool(consumer.assignment) and not self.unread(consumer)

    def give_up(self, key: Key, why: str) -> None:
        """It is not waited for; it counts as read if it comes nevertheless."""
        self._silent[key] = why

    def missed(self, consumer: Consumer) -> dict[Key, str]:
        """This member's partitions that cannot be read to their ends, and why."""
        return {
            key: why
            for key, why in self._silent.items()
            if key in consumer.assignment and not self._is_read(key, consumer.position(*key))
        }

    def _is_read(self, key: Key, position: int | None) -> bool:
        """Nothing is to be read of a partition that was added meanwhile; it has no end here."""
        end = self._ends.get(key)
        if end is None:
            return key not in self._silent
        return position is not None and position >= end


async def write_all(
    consumer: Consumer,
    wish: ConsumeOrder,
    ends: GroupEnds | None,
    form: Format,
    output: Sink,
    stopping: Stopping,
) -> bool:
    """Until `records_max` are written, the partitions have reached `ends`, or a signal.

    Returns whether it were the ends.
    """
    left = wish.records_max
    batches = consumer.batches(max_records=BATCH_RECORDS_MAX)
    while not stopping.is_wanted:
        # Before waiting: the partitions may be empty, or committed to their ends already.
        if ends is not None and ends.is_reached(consumer):
            await _commit_passed(consumer)
            return True
        batch = await _next(batches, stopping, LOOK_SECONDS if ends is not None else PASSED_SECONDS)
        # Nothing came for a while, or a signal came.
        if batch is None:
            with stopping.breaking_off():
                await _commit_passed(consumer)
            continue
        count = len(batch) if left is None else min(left, len(batch))
        written = await _write(batch, count, form, output, stopping)
        # Only part of the batch is written after a signal, or up to -n: commit up to that record.
        if written:
            await _commit(consumer, batch if written == len(batch) else list(batch)[written - 1])
        if left is not None and (left := left - written) == 0:
            return False
    return False


async def _next(batches: Batches, stopping: Stopping, seconds: float) -> ConsumedBatch | None:
    with stopping.breaking_off(), anyio.move_on_after(seconds):
        return await anext(batches)
    return None


async def _commit(consumer: Consumer, work: ConsumedBatch | ConsumerRecord) -> None:
    """Commit, unless a rebalance has moved the partition, whose next owner begins before it."""
    with suppress(IllegalGeneration, RebalanceInProgress, UnknownMemberId):
        await consumer.commit(work)


async def _commit_passed(consumer: Consumer) -> None:
    """Commit the positions: behind the last record there may be control batches, which are no
    records, and what a filter leaves out.

    A failure does no harm: the next commit covers it.
    """
    with suppress(RaftmqError):
        await consumer.commit()


# -- writing -----------------------------------------------------------------------------------


async def _write(
    batch: ConsumedBatch, count: int, form: Format, output: Sink, stopping: Stopping
) -> int:
    """Write the first `count` records; returns their number, less after a signal."""
    data, before = form(batch, slice(0, count)), output.byte_count
    with stopping.breaking_off():
        # Until the reader has taken all of it; a signal breaks it off.
        await output.write(data)
        return count
    # Cancelled within the block: find the record that was cut, and write the rest of it.
    taken = output.byte_count - before

    def size(records: int) -> int:
        return len(form(batch, slice(0, records)))

    begun = bisect_left(range(count), taken, key=size)
    return begun if await _finish(data[taken : size(begun)], output) else begun - 1


async def _finish(rest: bytes, output: Sink) -> bool:
    """Write the rest of the record that was cut; False: the reader does not take it."""
    with anyio.move_on_after(FINISH_SECONDS_MAX):
        if rest:
            await output.write(rest)
        return True
    return False


def _tell(rebalance: Rebalance) -> None:
    for what, keys in (("reads", rebalance.assigned), ("has lost", rebalance.lost)):
        if keys:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in keys)
            click.echo(f"raftmq: {what} {names}", err=True)
