"""Blocking `connect` and `Client`: opens the event loop's thread, makes producers and consumers.

Owns the order of closing: consumers, then the client, then the thread. Divides `buffer_memory`
between the handover queue and the producer in the loop. Parameters and docstrings are written by
`python -m tests.sync_source`.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, overload

from raftmq.client import client as asynchronous
from raftmq.client.blocks import BlockingBlock, warn_unclosed
from raftmq.client.client import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP
from raftmq.client.options import bad_function
from raftmq.client.processing.options import MAX_IN_HAND
from raftmq.client.producer.options import ProducerOptions, producer_options
from raftmq.errors import Closed, InvalidConfig
from raftmq.sync.admin import Admin
from raftmq.sync.block import Block
from raftmq.sync.consumer import Consumer
from raftmq.sync.loop import Loop, LoopCall
from raftmq.sync.producer import Producer, shares_of_buffer
from raftmq.sync.shared import SharedTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Never, Self, Unpack

    from raftmq.client.consumer.options import ConsumerArguments
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.processing.process import StopEvent
    from raftmq.client.processing.retry_policy import RetryChoice, RetryPolicy
    from raftmq.client.producer.options import PlainProducerArguments, ProducerArguments
    from raftmq.client.type_parameters import KeyT, KeyT_co, ValueT, ValueT_co

T = TypeVar("T")
# How long the interpreter's exit waits for a client whose block was never left.
EXIT_SECONDS_MAX = 2.0


def connect(
    bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP,
    *,
    client_id: str = "",
    connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
    **unknown: Never,
) -> Client:
    """A connection to a cluster: `with connect("host:9292") as client:`.

    Args:
        bootstrap: where brokers listen, `host:port`, several with commas between or as a list; one
            that answers is enough.
        client_id: what this program calls itself in the logs of brokers.
        connect_timeout_ms: how long the first answer may take.

    Returns:
        A client; nothing is sent before its block is entered.

    Raises:
        TypeError: an unknown option, or a value of another type.
        InvalidConfig: an address that is none.
        Unreachable: on entering the block: no broker has answered in time. Definite.
    """
    return Client(
        asynchronous.connect(
            bootstrap, client_id=client_id, connect_timeout_ms=connect_timeout_ms, **unknown
        )
    )


class Client(BlockingBlock):
    """See `connect`. Several threads may use it.

    Attributes:
        admin: topics, their configuration, groups and the state of the cluster.
    """

    def __init__(self, client: asynchronous.Client) -> None:
        self._client = client
        self._loop = Loop(
            "raftmq-sync", nullcontext, owner="the client", exit_seconds_max=EXIT_SECONDS_MAX
        )
        self._block = Block(self._loop, client)
        self._was_opened = False
        self._consumers: set[Consumer[Any, Any]] = set()  # that are open
        self.admin = Admin(self._loop, client.admin)

    # A default, as the name may be gone when the interpreter ends. A fork has nothing to close.
    def __del__(self, warn: Callable[..., None] = warn_unclosed) -> None:
        if self._block.is_open and self._loop.is_ours:
            warn(self)

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        if self._was_opened:  # its connections cannot be opened again
            raise Closed("a client is opened once: connect again")
        self._was_opened = True
        self._loop.__enter__()
        try:
            self._block.open()
        # Also Ctrl-C: the thread is running.
        except BaseException as error:
            self._loop.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close everything that is still open, at once."""
        if not self._loop.is_ours:  # a fork has nothing to close
            return
        with ExitStack() as stack:
            stack.callback(self._loop.__exit__, None, None, None)
            stack.callback(self._block.close, None)
            for consumer in list(self._consumers):
                stack.callback(consumer.close)

    def open(self) -> Self:
        """Open it as `with` does, until `close()`. Raises as entering the block does."""
        return self.__enter__()

    def close(self) -> None:
        """Close it, and everything of it that is still open. Does nothing if it is not open."""
        if self._block.is_open:
            self.__exit__(None, None, None)

    @overload
    def producer(self, **options: Unpack[PlainProducerArguments]) -> Producer: ...
    @overload
    def producer(
        self, **options: Unpack[ProducerArguments[ValueT, KeyT]]
    ) -> Producer[ValueT, KeyT]: ...
    def producer(
        self, **options: Unpack[ProducerArguments[ValueT, KeyT]]
    ) -> Producer[ValueT, KeyT]:
        """A producer: `with client.producer(acks="all") as producer:`.

        Args:
            options: see `raftmq.ProducerOptions`; `preset`, "high_throughput" or "low_latency"; and
                `delivery`, "at_most_once" or "at_least_once", in place of `acks`, `retries` and
                `idempotence`.

        Raises:
            TypeError: an unknown option.
            InvalidConfig: values that are out of bounds or contradict each other, all at once.
            Closed: outside of the client's block.
        """
        self._loop.check_process()
        checked = producer_options(options)
        handover_bytes, options["buffer_memory"] = shares_of_buffer(checked)
        producer = self._loop.evaluate(lambda: self._client.producer(**options))
        return Producer(self._loop, producer, handover_bytes)

    def consumer(
        self,
        *topics: str,
        retry: RetryPolicy | None = None,
        **options: Unpack[ConsumerArguments[ValueT_co, KeyT_co]],
    ) -> Consumer[ValueT_co, KeyT_co]:
        """A consumer: `with client.consumer("orders", start="earliest") as consumer:`.

        It may also be used without a block, until the client is closed.

        Args:
            topics: all partitions of these are read; or give `assign`.
            retry: of a member of a group: when, and how often, a record is tried again for which
                `Consumer.retry` is called, or `Transaction.retry`. Members with a policy read
                the group's topic of retries along.
            options: see `raftmq.ConsumerOptions`.

        Raises:
            TypeError: an unknown option.
            InvalidConfig: values that are out of bounds or contradict each other, all at once.
            Closed: outside of the client's block.
        """
        self._loop.check_process()
        consumer = self._loop.evaluate(
            lambda: self._client.consumer(*topics, retry=retry, **options)
        )
        return Consumer(self._loop, consumer, self._consumers)

    def process(
        self,
        *topics: str,
        handler: Callable[[ConsumerRecord[ValueT_co, KeyT_co]], object],
        concurrency: int = 1,
        retry: RetryChoice = None,
        max_in_hand: int = MAX_IN_HAND,
        stop: StopEvent | None = None,
        **options: Unpack[ConsumerArguments[ValueT_co, KeyT_co]],
    ) -> None:
        """Call `handler` for each record of some topics, as a member of a group: at least once.

        Runs until it is cancelled, or until `stop` is set. What the handler has returned from is
        committed in the background, and never what lies behind an unfinished record of the same
        partition. Records of one key are handled one after the other, in their order.

        The group begins at the oldest record, unless `start` says otherwise.

        This thread waits, until Ctrl-C, or until another thread closes the client: handlers run in
        others, and what is at work is finished first.

        Args:
            topics: all partitions of these are read; or give `pattern`.
            handler: a function of a record. A plain one runs in a thread, `concurrency` of them
                at a time.
            concurrency: how many records are handled at a time.
            retry: what becomes of a record whose handler fails. None: the error is raised. A
                `RetryPolicy`: it is moved to the group's topic of retries, and handled again
                after a pause; the order of its key is given up. "in_place", or a
                `RetryPolicy(in_place=True)`: it is tried again where it stands, while records
                with its key wait and others go on. After the last attempt it goes to the
                group's dead letters.
            max_in_hand: how many records are read and not finished at the most, also those that are
                finished behind one that is not; of one partition half of it.
            stop: an event of the event loop, or of `threading`: once it is set, no record is begun
                any more, those at work are finished, and it returns.
            options: of the consumer, see `raftmq.ConsumerOptions`; it needs a `group`.

        Raises:
            TypeError: an unknown option.
            InvalidConfig: values that are out of bounds or contradict each other, all at once.
            Closed: outside of the client's block.
            RaftmqError: what reading has raised, or why a record cannot be set aside.
            Exception: what the handler has raised, if nothing catches it; a note names the record.
        """
        self._loop.check_process()
        problems = bad_function("handler", handler, "def handle(record)")
        if stop is not None and iscoroutinefunction(getattr(stop, "wait", None)):
            problems.append(f"stop = {stop!r}: of an event loop; here an event of threading")
        if problems:
            raise InvalidConfig(problems)
        self._run(
            lambda: self._client.process(
                *topics,
                handler=handler,
                concurrency=concurrency,
                retry=retry,
                max_in_hand=max_in_hand,
                stop=stop,
                **options,
            )
        )

    def shared_transaction(
        self,
        transaction_id: str,
        *,
        lineage: str,
        transaction_timeout_ms: int = ProducerOptions.transaction_timeout_ms,
        is_ephemeral: bool = False,
    ) -> SharedTransaction:
        """A transaction of many producers, which somebody commits: of the tasks of a job, say.

        Asks nothing of the cluster. Each process that has to do with it makes one of its own, with
        the same arguments.

        Args:
            transaction_id: names it over all runs; no producer may have the id.
            lineage: whose versions these are, such as the id of a checkpoint or of a table: where
                version numbers begin anew, that is another lineage, and refused, or new rows
                would pass for old ones. "" where they never do.
            transaction_timeout_ms: how long a version may hold up readers of its partitions, from
                its first record on; then it is aborted.
            is_ephemeral: forget the id an hour after its last version, and with it which versions
                were committed.

        Raises:
            InvalidConfig: values that are out of bounds, all at once.
            Closed: outside of the client's block.
        """
        self._loop.check_process()
        shared = self._loop.evaluate(
            lambda: self._client.shared_transaction(
                transaction_id,
                lineage=lineage,
                transaction_timeout_ms=transaction_timeout_ms,
                is_ephemeral=is_ephemeral,
            )
        )
        return SharedTransaction(self._loop, shared)

    def _run(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it in the loop until it ends. After Ctrl-C, too, it is waited for."""
        call = LoopCall(function, ())
        try:
            self._loop.start(call)
            self._loop.wait(call)
        except BaseException:
            self._loop.cancel(call)
            with suppress(Exception):
                self._loop.wait(call)
            raise
