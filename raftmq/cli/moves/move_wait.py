"""Waits until moves are done: `--wait` of `topic move` and `topic alter`, and rates of copies.

Looks every half second; a cluster that does not answer for a while is waited for, too. stderr says
once for each reason why moves stand still, and on a terminal how far all of them are.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import anyio

from raftmq.cli.clusters.connected import ANSWER_SECONDS_MAX, GRACE_SECONDS, try_ask
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.program import as_called
from raftmq.cli.terminal.progress import Progress, show_progress
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.moves import PartitionMove, RequestedMove
    from raftmq.client.administration.results import TopicPartition

WAIT_SECONDS = 0.5  # between looks: a move of a small partition takes about as long
# That a move is in no list, or goes elsewhere: a broker may be behind for so long.
GONE_SECONDS = 3.0
LIMIT = "are under way"  # ends the reasons of moves that wait for others, which is no news
NAMED_MAX = 10  # partitions in a message


class CopyRates:
    """Bytes per second of the copies that are under way, from one look to the next."""

    def __init__(self) -> None:
        self._last: dict[TopicPartition, tuple[float, PartitionMove]] = {}

    def measure(self, moves: Sequence[PartitionMove], now: float) -> dict[TopicPartition, float]:
        """Of those moves of which it is known."""
        rates: dict[TopicPartition, float] = {}
        before, self._last = self._last, {}
        for move in moves:
            key = move.topic, move.partition
            self._last[key] = now, move
            at, last = before.get(key, (now, move))
            # Where a replica has joined, others are counted now than before.
            is_same = last.adding == move.adding and at < now
            if is_same and last.bytes_done is not None and move.bytes_done is not None:
                rates[key] = max(move.bytes_done - last.bytes_done, 0) / (now - at)
        return rates


def seconds_left(move: PartitionMove, rate: float | None) -> float | None:
    """At that rate; None: it is not known, or nothing is copied."""
    if not rate or move.bytes_done is None or move.bytes_total is None:
        return None
    return (move.bytes_total - move.bytes_done) / rate


class MoveWait:
    """Until all of these are done.

    Args:
        on_moved: called for each that is.
    """

    def __init__(
        self, planned: Sequence[RequestedMove], on_moved: Callable[[RequestedMove], None]
    ) -> None:
        self._left = {(one.topic, one.partition): one for one in planned}
        self._count, self._on_moved = len(planned), on_moved
        self._listed: dict[TopicPartition, PartitionMove] = {}
        self._gone: dict[TopicPartition, float] = {}  # since when
        self._not_in_sync = Counter[str]()
        self._rates, self._rate = CopyRates(), 0.0
        self._said: set[str] = set()

    async def run(self, admin: Admin) -> None:
        """
        Raises:
            CommandError: the time is over, or somebody else has changed or ended one of the moves.
            UnknownTopicOrPartition: the topic is deleted.
        """
        progress = Progress(self._percent, self._told, 100.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(show_progress, progress)
            await self._watch(admin)
            tasks.cancel_scope.cancel()

    async def _watch(self, admin: Admin) -> None:
        # End before `run_connected` cancels, with a message that says what is not done.
        deadline = anyio.current_effective_deadline() - GRACE_SECONDS
        while self._left:
            left = deadline - anyio.current_time()
            found, problem = await try_ask(admin, self._look, min(left, ANSWER_SECONDS_MAX))
            self._say({problem: problem} if found is None else self._reasons())
            if self._left and deadline - anyio.current_time() <= WAIT_SECONDS:
                raise CommandError(self._unfinished(), ExitCode.UNREACHABLE)
            if self._left:
                await anyio.sleep(WAIT_SECONDS)

    async def _look(self, admin: Admin) -> bool:
        moves = {(one.topic, one.partition): one for one in await admin.moves()}
        known = {key: moves[key] for key in self._left if key in moves}
        self._listed = {
            key: move for key, move in known.items() if move.target == self._left[key].target
        }
        for key in self._listed:
            self._gone.pop(key, None)
        self._rate = sum(
            self._rates.measure([*self._listed.values()], anyio.current_time()).values()
        )
        for key in known.keys() - self._listed.keys():
            self._doubt(key, f"another move took its place, to {show_ids(known[key].target)}")
        self._not_in_sync.clear()
        missing = self._left.keys() - known.keys()
        for topic in sorted({topic for topic, _ in missing}):
            await self._compare(admin, topic, missing)
        return True

    async def _compare(self, admin: Admin, topic: str, missing: Collection[TopicPartition]) -> None:
        """What is not listed any more has its replicas, or has lost its move."""
        for one in (await admin.describe_topic(topic)).partitions:
            key = topic, one.partition
            if key not in missing:
                continue
            wanted = self._left[key]
            if one.adding or one.removing:  # under way: the broker that listed moves is behind
                self._gone.pop(key, None)
            elif one.replicas != wanted.target:
                lost = "was" if wanted.error is None else "was not planned, or"
                there = show_ids(one.replicas)
                self._doubt(key, f"its move {lost} taken back; its replicas are {there}")
            elif absent := [each for each in wanted.target if each not in one.isr]:
                self._not_in_sync.update(f"broker {each} is not in sync" for each in absent)
            else:
                self._on_moved(self._left.pop(key))

    def _doubt(self, key: TopicPartition, why: str) -> None:
        now = anyio.current_time()
        if now - self._gone.setdefault(key, now) >= GONE_SECONDS:
            raise CommandError(f"{_name(key)}: {why}", ExitCode.FAILED)

    def _reasons(self) -> dict[str, str]:
        """Of moves that stand still, with a line for each."""
        waits = [move.waits_for for move in self._listed.values()]
        found = Counter(why for why in waits if why and not why.endswith(LIMIT))
        found += self._not_in_sync
        return {why: f"{counted(count, 'move')}: {why}" for why, count in found.items()}

    def _say(self, reasons: Mapping[str, str]) -> None:
        for reason in sorted(reasons.keys() - self._said):
            sys.stderr.write(f"raftmq: waiting: {reasons[reason]}\n")
        self._said |= reasons.keys()

    def _unfinished(self) -> str:
        names = ", ".join(map(_name, list(self._left)[:NAMED_MAX]))
        more = len(self._left) - NAMED_MAX
        rest = f" and {more} more" if more > 0 else ""
        return as_called(
            f"not moved yet: {names}{rest}; this goes on, `raftmq cluster moves` shows how far it"
            " is"
        )

    def _percent(self) -> float:
        copied = sum(
            move.bytes_done / move.bytes_total
            for move in self._listed.values()
            if move.bytes_done is not None and move.bytes_total
        )
        return 100.0 * (self._count - len(self._left) + copied) / self._count

    def _told(self) -> str:
        done = self._count - len(self._left)
        return f"{done} of {self._count} moved, {show_rate(self._rate)}"


def _name(key: TopicPartition) -> str:
    return f"partition {key[1]} of topic {key[0]}"


def show_ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def show_rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:.2f} MB/s"
