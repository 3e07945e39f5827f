"""`connect` and `Client`: the entry to a cluster; makes producers, consumers and the admin.

Owns the options of a connection. `producer/`, `consumer/` and `administration/` own what is done
over it; `routing/cluster.py` owns connections and leaders.
"""

from __future__ import annotations

import logging
import time
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Self, overload

import anyio

from raftmq.client.administration.admin import Admin
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.openable import Openable
from raftmq.client.options import check_options
from raftmq.client.processing.options import MAX_IN_HAND, process_options
from raftmq.client.processing.process import process
from raftmq.client.producer.options import ProducerOptions, producer_options
from raftmq.client.producer.producer import Producer
from raftmq.client.routing.cluster import Cluster
from raftmq.client.transactions.shared import SharedTransaction
from raftmq.errors import Closed, InvalidConfig
from raftmq.rpc.protocol import parse_address
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Never, Unpack

    from raftmq.client.consumer.options import ConsumerArguments
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.network.network import AnyioNetwork
    from raftmq.client.processing.process import StopEvent
    from raftmq.client.processing.retry_policy import RetryChoice, RetryPolicy
    from raftmq.client.producer.options import PlainProducerArguments, ProducerArguments
    from raftmq.client.type_parameters import KeyT, KeyT_co, ValueT, ValueT_co
    from raftmq.model import Address

# The address in the documentation's examples: a broker on the same machine.
DEFAULT_BOOTSTRAP = "127.0.0.1:9292"
CONNECT_TIMEOUT_MS = 10_000  # for the first metadata: several attempts at a broker that is starting
OPTIONS = ("bootstrap", "client_id", "connect_timeout_ms")

logger = logging.getLogger("raftmq.client")


def connect(
    bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP,
    *,
    client_id: str = "",
    connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
    **unknown: Never,
) -> Client:
    """A connection to a cluster: `async with connect("host:9292") as client:`.

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
    # `Never`: type checkers refuse what this explains at run time.
    check_options("connect", unknown, OPTIONS)
    if not isinstance(client_id, str):
        raise TypeError(f"client_id is {kind_of(client_id)}, expected str")
    is_number = isinstance(connect_timeout_ms, (int, float))
    # True is an int for Python, but never meant as a time.
    if not is_number or isinstance(connect_timeout_ms, bool):
        raise TypeError(f"connect_timeout_ms = {connect_timeout_ms!r}: expected milliseconds")
    if not connect_timeout_ms > 0:
        raise InvalidConfig([f"connect_timeout_ms = {connect_timeout_ms!r}: expected more than 0"])
    addresses = parse_bootstrap(bootstrap)
    return Client(addresses, client_id=client_id, connect_timeout_ms=connect_timeout_ms)


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Address]:
    """Each address once. Raises InvalidConfig, which names all that are none."""
    if not isinstance(bootstrap, (str, list, tuple)):
        raise TypeError(f"bootstrap is {kind_of(bootstrap)}, expected host:port, or a list")
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    addresses: dict[Address, None] = {}
    problems: list[str] = []
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"bootstrap: {text!r} is {kind_of(text)}, expected host:port")
        try:
            addresses[parse_address(text.strip())] = None
        except InvalidConfig as error:
            problems += [f"bootstrap: {problem}" for problem in error.problems]
    if problems:
        raise InvalidConfig(problems)
    return list(addresses)


class Client(Openable):
    """See `connect`. Producers and consumers share its connections.

    Attributes:
        admin: topics, their configuration, groups and the state of the cluster.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        client_id: str = "",
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
        network: AnyioNetwork | None = None,
        random: Random | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """`network`, `random` and `now_ms` replace the machine's own in simulations."""
        self._random = random or SystemRandom()
        self._now_ms = now_ms or _now_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._cluster = Cluster(
            addresses, network or AnyioTcpNetwork(), random=self._random, client_id=client_id
        )
        self._was_opened = self._is_open = False
        self.admin = Admin(self._cluster)

    def __repr__(self) -> str:
        addresses = ", ".join(map(str, self._cluster.bootstrap))
        return f"<Client of {addresses}, {self._state(was_opened=self._was_opened)}>"

    async def __aenter__(self) -> Self:
        if self._was_opened:  # its tasks cannot be started again
            raise Closed("a client is opened once: connect again")
        self._was_opened = True
        await self._cluster.__aenter__()  # starts its tasks; dials nothing yet
        try:
            deadline = anyio.current_time() + self._connect_timeout_ms / 1000
            # Ends when a broker has answered; raises Unreachable after connect_timeout_ms.
            await self._cluster.refresh(None, deadline=deadline)
        # Also when cancelled: the cluster's tasks are running.
        except BaseException as error:
            await self._cluster.__aexit__(type(error), error, None)
            raise
        self._is_open = True
        brokers = self._cluster.routes.addresses
        shown = ",".join(f"{broker_id}@{brokers[broker_id]}" for broker_id in sorted(brokers))
        cluster = self._cluster.routes.cluster_id
        logger.info("connected: cluster=%s brokers=%s", cluster, shown)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._is_open = False
        return await self._cluster.__aexit__(kind, error, traceback)

    @overload
    def producer(self, **options: Unpack[PlainProducerArguments]) -> Producer: ...
    @overload
    def producer(
        self, **options: Unpack[ProducerArguments[ValueT, KeyT]]
    ) -> Producer[ValueT, KeyT]: ...
    def producer(
        self, **options: Unpack[ProducerArguments[ValueT, KeyT]]
    ) -> Producer[ValueT, KeyT]:
        """A producer: `async with client.producer(acks="all") as producer:`.

        Args:
            options: see `raftmq.ProducerOptions`; `preset`, "high_throughput" or "low_latency"; and
                `delivery`, "at_most_once" or "at_least_once", in place of `acks`, `retries` and
                `idempotence`.

        Raises:
            TypeError: an unknown option.
            InvalidConfig: values that are out of bounds or contradict each other, all at once.
            Closed: outside of the client's block.
        """
        self._check_open()
        checked = producer_options(options)
        return Producer(self._cluster, checked, random=self._new_random(), now_ms=self._now_ms)

    def consumer(
        self,
        *topics: str,
        retry: RetryPolicy | None = None,
        **options: Unpack[ConsumerArguments[ValueT_co, KeyT_co]],
    ) -> Consumer[ValueT_co, KeyT_co]:
        """A consumer: `async with client.consumer("orders", start="earliest") as consumer:`.

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
        self._check_open()
        return Consumer(
            self._cluster,
            topics,
            options if retry is None else {**options, "retry": retry},
            random=self._new_random(),
            make_producer=lambda given: self.producer(**given),
        )

    async def process(
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
        self._check_open()
        checked = process_options(
            topics,
            handler,
            concurrency=concurrency,
            retry=retry,
            max_in_hand=max_in_hand,
            stop=stop,
            given=options,
        )
        consumer = self.consumer(*topics, **checked.consumer)
        random = self._new_random()
        await process(
            consumer,
            handler,
            checked,
            reject=consumer.reject,
            retry=consumer.retry,
            random=random,
            stop=stop,
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
        self._check_open()
        return SharedTransaction(
            self._cluster,
            transaction_id,
            lineage=lineage,
            transaction_timeout_ms=transaction_timeout_ms,
            is_ephemeral=is_ephemeral,
            new_random=self._new_random,
            now_ms=self._now_ms,
        )

    def _new_random(self) -> Random:
        """A generator of its own keeps simulations reproducible, in any order of tasks."""
        return Random(self._random.getrandbits(64))

    def _check_open(self) -> None:
        if not self._is_open:
            raise self._why_closed("the client", was_opened=self._was_opened)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
