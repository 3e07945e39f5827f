"""Hands records from the program's threads to the producer in the event loop, and slow rows, too.

Owns their order, the bound of what waits (back-pressure), and the one task that takes records. A
single record costs one append to a queue; the loop is woken only if it sleeps.

Invariants: if a thread is interrupted while it hands in a record, the next call wakes the loop
again. A record that was handed in is accepted or refused by the producer, and each refusal is
reported; none is accepted after `close`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from raftmq.client.blocks import not_open
from raftmq.client.producer.delivery import call_program
from raftmq.client.producer.statistics import Failures
from raftmq.errors import BufferFull, Closed, InvalidRecord, RaftmqError, RequestTimedOut
from raftmq.sync.loop import LoopCall, limit_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterable

    from raftmq.client.producer.batch import RecordMetadata
    from raftmq.client.producer.delivery import Delivery as AsyncDelivery
    from raftmq.client.producer.producer import Producer as AsyncProducer
    from raftmq.client.transactions.sending import TransactionSender as AsyncSender
    from raftmq.sync.loop import Loop, TimeLimit
    from raftmq.wire.batch.columns import Value


class Delivery:
    """The future outcome of one record, for any thread."""

    __slots__ = ("_error", "_handover", "_inner", "_is_claimed", "_taken")

    # _is_claimed: the program has learnt of `_error`, or will.

    def __init__(self, handover: Handover, *, is_claimed: bool = False) -> None:
        self._handover, self._is_claimed = handover, is_claimed
        self._inner: AsyncDelivery | None = None
        self._error: RaftmqError | None = None
        self._taken: trio.Event | None = None

    def __repr__(self) -> str:
        if self._inner is not None:
            return repr(self._inner)
        return f"<Delivery: {'waits for its turn' if self._error is None else repr(self._error)}>"

    @property
    def is_done(self) -> bool:
        """Whether the outcome of the record is known."""
        return self._error is not None or (self._inner is not None and self._inner.is_done)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the outcome.

        Args:
            timeout: seconds; None: as long as it takes.

        Returns:
            Partition, offset and timestamp of the record.

        Raises:
            RequestTimedOut: not known yet; the record is sent nevertheless. Indefinite.
            RaftmqError: the delivery has failed; `error.definite` says whether it was certainly not
                appended.
        """
        return self._result(limit_of(timeout))

    def _result(self, limit: TimeLimit | None) -> RecordMetadata:
        return self._handover.loop.call(self._wait, timeout=limit)

    async def _wait(self) -> RecordMetadata:
        # Still in the handover's queue.
        if self._inner is None and self._error is None:
            self._handover.wake()
            if self._taken is None:
                self._taken = trio.Event()
            # Ends when the handover task has given the record to the producer, or refused it at
            # close.
            await self._taken.wait()
        if self._error is not None:
            self._is_claimed = True
            raise self._error.copied()
        assert self._inner is not None, "woken before it was settled"
        return await self._inner

    def _settle(self, outcome: AsyncDelivery | RaftmqError) -> None:
        """In the loop: the producer has accepted the record, or refused it."""
        if isinstance(outcome, RaftmqError):
            self._error = outcome
        else:
            self._inner = outcome
        if self._taken is not None:
            self._taken.set()


# As the producer says it: a program cannot tell where its record was.
CLOSED = "the client was closed before it was delivered"


class Handed(NamedTuple):
    """A record that waits for the handover task."""

    delivery: Delivery
    size: int
    arguments: tuple[str, Value]
    named: dict[str, Any]


class Handover:
    """The queue between the program's threads and one producer, or one transaction of it.

    Attributes:
        failures: of records that the producer has refused.
    """

    def __init__(
        self,
        loop: Loop,
        producer: AsyncProducer[Any, Any] | AsyncSender[Any, Any],
        bytes_max: int,
    ) -> None:
        self.loop, self._producer, self._bytes_max = loop, producer, bytes_max
        self.failures = Failures()
        self._wanted = trio.Event()
        # Tasks that wait until so many records were taken
        self._waiting: list[tuple[int, trio.Event]] = []
        self._wait_count_min = math.inf
        self._lock = Lock()  # guards the attributes below
        self._handed: deque[Handed] = deque()
        self._handed_bytes = 0
        self._handed_count = self._taken_count = 0
        self._is_open = self._was_opened = self._is_woken = False

    # -- in any thread ---------------------------------------------------------------------

    def open(self) -> None:
        self._is_open = self._was_opened = True

    def close(self) -> None:
        """Accept no more records."""
        with self._lock:
            self._is_open = False
        self.loop.call_soon(self.wake)

    def count_undelivered(self) -> int:
        """Records that the producer has not taken, or whose refusal nothing has reported."""
        return len(self._handed) + self.failures.count()

    def check_open(self) -> None:
        if not self._is_open:
            raise not_open("the producer", was_opened=self._was_opened)

    def put(self, handed: Handed) -> None:
        """Queue a record.

        Raises:
            BufferFull: there is no memory for it now.
            Closed: not open, or not any more.
        """
        with self._lock:
            self.check_open()
            # A record larger than the bound is accepted while the queue is empty.
            if self._handed and self._handed_bytes + handed.size > self._bytes_max:
                raise BufferFull(
                    f"{self._handed_bytes} bytes wait to be taken over, {handed.size} more do not "
                    "fit: wait, as `enqueue` does, or raise buffer_memory"
                )
            self._handed_bytes += handed.size
            self._handed_count += 1
            self._handed.append(handed)
            if not self._is_woken:  # set last: if Ctrl-C hits before, the next put wakes
                self.loop.call_soon(self.wake)
                self._is_woken = True

    # -- in the loop -----------------------------------------------------------------------

    def wake(self) -> None:
        """Let the task look for records."""
        self._wanted.set()

    async def run(self) -> None:
        """Runs until all records were taken after `close`. If it is cancelled, the rest is
        refused.
        """
        try:
            await self._serve()
        finally:
            self.close()
            while handed := self._next():
                self._refuse(handed, Closed(CLOSED))

    async def _serve(self) -> None:
        while True:
            self._wanted = trio.Event()
            is_last = not self._is_open  # read before the queue: a put before close is not missed
            while handed := self._next():
                await self._take(handed)
            if is_last:  # closed, and the queue was empty after that
                return
            # Set by the next `put`, by `close`, or by a task that waits for records to be taken.
            await self._wanted.wait()

    async def wait_taken(self) -> None:
        """Wait until all records handed in so far were taken."""
        await self._wait_count(self._handed_count)

    async def wait_room(self) -> None:
        """Wait until half of the queue was taken, so that a full buffer does not switch threads per
        record.
        """
        waiting = self._handed_count - self._taken_count
        await self._wait_count(self._taken_count + (waiting + 1) // 2)

    async def _wait_count(self, count: int) -> None:
        self.wake()
        if self._taken_count < count:  # else it was taken already
            place = count, trio.Event()
            self._waiting.append(place)
            self._wait_count_min = min(count, self._wait_count_min)
            # Ends when enough records were taken; the caller bounds the time.
            await place[1].wait()

    def _next(self) -> Handed | None:
        with self._lock:
            if self._handed:
                return self._handed.popleft()
            self._is_woken = False
            return None

    async def _take(self, handed: Handed) -> None:
        try:
            handed.delivery._settle(await self._producer.enqueue(*handed.arguments, **handed.named))
        except RaftmqError as error:  # refused by the producer
            self._refuse(handed, error)
        except Exception as error:  # from the program's partitioner, for example
            self._refuse(handed, InvalidRecord(f"topic {handed.arguments[0]!r}: {error!r}"))
        # Cancelled: the client is closing. The waiting thread must get an outcome.
        except BaseException:
            self._refuse(handed, Closed(CLOSED))
            raise
        finally:
            with self._lock:
                self._handed_bytes -= handed.size
                self._taken_count += 1
            # A comparison per record, not a loop over the waiting tasks.
            if self._taken_count >= self._wait_count_min:
                self._wake_waiters()

    def _refuse(self, handed: Handed, error: RaftmqError) -> None:
        delivery, on_delivery = handed.delivery, handed.named["on_delivery"]
        delivery._settle(error)
        if on_delivery is None:  # otherwise the callback reports it
            self.failures.add(error, lambda: not delivery._is_claimed)
        else:
            call_program(partial(on_delivery, error, None))

    def _wake_waiters(self) -> None:
        count = self._taken_count
        for wanted, event in self._waiting:
            if wanted <= count:
                event.set()
        self._waiting = [each for each in self._waiting if each[0] > count]
        self._wait_count_min = min((each[0] for each in self._waiting), default=math.inf)


# -- Rows -----------------------------------------------------------------------------------------
# Rows that may come slowly: read in the program's thread, used in the loop's thread.
#
# Owns the way of a portion from one to the other. A generator, or a file, that waits would
# otherwise stop everything that runs in the loop, and Ctrl-C would not be noticed.


T = TypeVar("T")
PORTION_RECORDS_MAX = 4096  # as in `producer/bulk.py`
PORTION_SECONDS_MAX = 0.02  # rows that come slowly leave after 20 ms, however few they are
PORTIONS_MAX = 2  # one is used while the next waits


def may_wait(rows: object) -> bool:
    """Whether reading a row may block: not with a container."""
    is_there = isinstance(rows, (Sequence, deque, dict, set, frozenset))
    return not is_there and not hasattr(rows, "__aiter__")


class Rows:
    """In the loop, an asynchronous iterator that has portions buffered."""

    def __init__(self, loop: Loop, rows: Iterable[Any]) -> None:
        self._loop, self._rows = loop, iter(rows)
        self._send, self._receive = trio.open_memory_channel[list[Any]](PORTIONS_MAX)
        self._portion: list[Any] = []

    def feed(
        self, use: Callable[[AsyncIterable[Any]], Awaitable[T]], *, timeout: float | None
    ) -> T:
        """What `use` returns or raises, which is called in the loop with these rows.

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            RequestTimedOut: after `timeout`, which is checked whenever rows have come. Indefinite.
        """
        limit = limit_of(timeout)
        call: LoopCall[T] = LoopCall(self._used_by, (use,))
        try:
            self._loop.start(call)
            while not call.is_done and (portion := self._take()):
                if limit is not None and limit.is_over:
                    raise RequestTimedOut(f"not all rows have come within {limit}")
                self._loop.call(self._put, portion)
            self._loop.call_soon(self._send.close)
            return self._loop.wait(call, limit)
        # Also Ctrl-C, or an error of the program's rows.
        except BaseException:
            self._loop.cancel(call)
            raise

    def _take(self) -> list[Any]:
        portion: list[Any] = []
        end = time.monotonic() + PORTION_SECONDS_MAX
        for row in self._rows:
            portion.append(row)
            if len(portion) >= PORTION_RECORDS_MAX or time.monotonic() >= end:
                break
        return portion

    # In the loop

    async def _used_by(self, use: Callable[[AsyncIterable[Any]], Awaitable[T]]) -> T:
        with self._receive:  # closed at the end, so that `_put` does not block for ever
            return await use(self)

    async def _put(self, portion: list[Any]) -> None:
        with suppress(trio.BrokenResourceError):  # the call has ended, and says why
            # Ends when the call has taken a portion: back-pressure on the reading thread.
            await self._send.send(portion)

    def __aiter__(self) -> Rows:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401  # rows of any type
        for row in await self.next_portion(1):
            return row
        raise StopAsyncIteration

    async def next_portion(self, count: int) -> list[Any]:
        """At most `count` rows; an empty list at the end."""
        if not self._portion:  # the last one is used up
            with suppress(trio.EndOfChannel):
                self._portion = await self._receive.receive()
        portion, self._portion = self._portion[:count], self._portion[count:]
        return portion
