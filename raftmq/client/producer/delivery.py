"""`Delivery`: the future outcome of one record, to be awaited, polled or ignored.

Holds no task, and no event until a task awaits it. A record is claimed while a task awaits it, has
read its result, or a callback is set: then its failure needs no other report. A cancelled wait
claims nothing.
"""

from __future__ import annotations

import logging
from inspect import CO_COROUTINE
from typing import TYPE_CHECKING

import anyio

from raftmq.client.unheard import is_heard, print_error
from raftmq.errors import InvalidRequest, OutcomeUnknown, RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Self

    from raftmq.client.producer.batch import OnDelivery, ProducerBatch, RecordMetadata


class Delivery:
    """`await delivery` returns the record's `RecordMetadata`, or raises the error of its delivery.

    It may be awaited more than once, and by several tasks. A wait that is cancelled changes
    nothing: the record is sent nevertheless.
    """

    __slots__ = ("_batch", "_claims", "_index")

    @staticmethod
    def _check_loop() -> None:
        """Raises InvalidRequest in an event loop where no task would ever wake the one that waits.

        Of the class, as an attribute of each record's delivery would take time and memory.
        """

    @classmethod
    def _of(cls, check_loop: Callable[[], None]) -> type[Self]:
        """The class for one producer."""
        named = {"__slots__": (), "__doc__": cls.__doc__, "__module__": cls.__module__}
        return type(cls.__name__, (cls,), {**named, "_check_loop": staticmethod(check_loop)})

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch: ProducerBatch | None = batch
        self._index = index
        self._claims = 0

    def __repr__(self) -> str:
        return f"<Delivery: {self._state()}>"

    def _state(self) -> str:
        """For people. Reports no failure: it may never be read."""
        if self._batch is None:
            return "waits for metadata"
        batch, index = self._held()
        if batch.outcome is None:
            return f"to {batch.topic}-{batch.partition}, not known yet"
        try:
            return repr(batch.metadata_of(index))
        except RaftmqError as error:
            return repr(error)

    @property
    def is_done(self) -> bool:
        """Whether the outcome of the record is known."""
        return self._batch is not None and self._held()[0].outcome is not None

    @property
    def _is_claimed(self) -> bool:
        """The program has learnt the outcome, or will, by an await or a callback."""
        return self._claims > 0

    def result(self) -> RecordMetadata:
        """What `await` returns, without waiting; only where `is_done`.

        Returns:
            Where the record is in the log.

        Raises:
            RaftmqError: the delivery has failed. Definite (`error.definite`): the record was
                certainly not appended. Indefinite: it may have been.
        """
        assert self.is_done, "not done yet"  # before it counts as one that the program has learnt
        self._claim()
        return self._found()

    def _found(self) -> RecordMetadata:
        """As `result`; the outcome was claimed already."""
        batch, index = self._held()
        return batch.metadata_of(index)

    def _call_back(self, on_delivery: OnDelivery) -> None:
        """Call `on_delivery` when the outcome is known. Only before it `is_done`."""
        assert self._batch is not None, "in no batch yet"
        self._claim()
        batch, index = self._held()
        batch.call_back(index, on_delivery)

    def _claim(self) -> None:
        """Note that the program learns the outcome."""
        self._claims += 1
        # The first claim; the batch counts records, not claims
        if self._claims == 1 and self._batch is not None:
            batch, index = self._held()
            batch.claim(index)

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        self._claim()
        try:
            # Woken when the batch is settled, and also when it was split: then another batch has
            # the record.
            while not self.is_done:
                self._check_here()
                event = anyio.Event()
                self._watch(event.set)
                # Ends when the batch is settled or split; delivery_timeout_ms bounds it.
                await event.wait()
        # Cancelled: this task does not learn of a failure, so `flush` must report it.
        except BaseException:
            self._disclaim()
            raise
        return self._found()

    def _check_here(self) -> None:
        try:
            self._check_loop()
        except InvalidRequest as error:
            raise OutcomeUnknown(f"it is sent, and this cannot wait for it: {error}") from error

    def _disclaim(self) -> None:
        self._claims -= 1
        if not self._claims and self._batch is not None:  # no other task awaits it
            batch, index = self._held()
            batch.claim(index, is_claimed=False)

    def _held(self) -> tuple[ProducerBatch, int]:
        """The batch that holds the record after splits, and its index there."""
        batch = self._batch
        assert batch is not None, "in no batch yet"
        return batch.holder_of(self._index) if batch.pieces else (batch, self._index)

    def _watch(self, watcher: Callable[[], None]) -> None:
        self._held()[0].watch(watcher)


class PendingDelivery(Delivery):
    """Of a record without a batch, as the number of partitions of its topic is not known yet."""

    __slots__ = ("_error", "_watchers")

    def __init__(self) -> None:
        self._batch, self._index, self._claims = None, 0, 0
        self._error: RaftmqError | None = None
        self._watchers: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        return self._error is not None or super().is_done

    def _state(self) -> str:
        return super()._state() if self._error is None else repr(self._error)

    def _found(self) -> RecordMetadata:
        if self._error is None:
            return super()._found()
        raise self._error.copied()

    def _place(self, batch: ProducerBatch, index: int) -> None:
        """The record has joined a batch."""
        self._batch, self._index = batch, index
        if self._claims:  # claimed while it waited for metadata
            batch.claim(index)
        self._wake()

    def _refuse(self, error: RaftmqError) -> None:
        """The record will join no batch."""
        self._error = error
        self._wake()

    def _watch(self, watcher: Callable[[], None]) -> None:
        if self._batch is None:  # woken when it joins a batch or is refused
            self._watchers.append(watcher)
        else:
            super()._watch(watcher)

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()


# -- Callbacks ------------------------------------------------------------------------------------


logger = logging.getLogger("raftmq.client")


def check_callback(given: object) -> None:
    """Raises TypeError: not a function that can be called as `on_delivery`.

    May run once per record: it reads the flags of the function, which costs less than `inspect`.
    """
    if given is None:
        return
    if not callable(given):
        raise TypeError(f"on_delivery = {given!r}: expected a function of (error, metadata)")
    code = getattr(given, "__code__", None)
    if code is not None and code.co_flags & CO_COROUTINE:
        raise TypeError(
            f"on_delivery = {given!r} is an `async def`, and would never run: give a function of "
            "(error, metadata), or await the delivery in a task"
        )


def call_program(call: Callable[[], object]) -> None:
    """Call `on_delivery`. Its error must not stop the task that called, nor vanish: it is logged,
    or, where the program has set up no logging, printed as an uncaught one of a thread is.
    """
    try:
        call()
    # The result of a cancelled future, say: nothing is cancelled within a plain call.
    except (Exception, anyio.get_cancelled_exc_class()) as error:
        if is_heard(logger):
            logger.exception("on_delivery has failed")
        else:
            print_error(error, "raised by on_delivery; the producer goes on")
