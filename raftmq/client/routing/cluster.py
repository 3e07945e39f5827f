"""`Cluster`: leader lookup, retries, broker choice and throttling for all of a client's requests.

Kafka: NetworkClient and Metadata. Owns the connections, the metadata cache and the loop that
repeats an operation. What one attempt sends is up to the callers (producer, consumer,
`administration`); whether there may be another, to `attempts`. Nothing is dialled before the first
request.

A cancelled call leaves at most one request in flight, whose answer is dropped.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import anyio
import msgspec
from anyio.lowlevel import current_token

from raftmq.client.block_tasks import BlockTasks
from raftmq.client.blocks import not_open
from raftmq.client.network.channel import AnyioConnector, loop_clock, one_error
from raftmq.client.routing.attempts import PAUSES, Attempts
from raftmq.client.routing.experience import Experience
from raftmq.client.routing.refreshing import Refreshing
from raftmq.client.routing.routes import Routes, answer_for, error_in, leader_told
from raftmq.errors import (
    Disconnected,
    InvalidConfig,
    InvalidRequest,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
)
from raftmq.rpc.backoff import Backoff
from raftmq.rpc.peers import Peers
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Answer
from raftmq.version import SOFTWARE
from raftmq.wire.bodies import ABSENT, TOPICS_MAX, check_limits
from raftmq.wire.foreign import VOTERS_MEET
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from random import Random
    from types import TracebackType

    from anyio.abc import TaskGroup
    from anyio.lowlevel import EventLoopToken

    from raftmq.client.network.network import AnyioNetwork
    from raftmq.client.routing.attempts import RepeatEffect
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.model import Address
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.metadata import MetadataReply

try:  # comes with trio, which names itself there while it runs in a thread
    from sniffio import thread_local as library
except ImportError:  # there is asyncio alone
    library = SimpleNamespace(name=None)  # type: ignore[assignment]


# -- Hedged requests ------------------------------------------------------------------------------
# One request to several brokers, one after the other, so that a slow one holds up nothing.
#
# Owns the pace: the next broker is asked when the one before has failed or its answer is not
# enough, and also when it is slow; a slow one may still answer first. Leaves no task behind.


async def ask_in_turn(
    asks: Iterable[Callable[[], Awaitable[T]]],
    is_enough: Callable[[T], bool],
    *,
    patience_seconds: float,
) -> tuple[list[T], list[RaftmqError]]:
    """Answers in the order in which they came, up to the first that is enough; and the errors.

    Args:
        patience_seconds: after which the next one is asked, too.
    """
    answers: list[T] = []
    problems: list[RaftmqError] = []

    async def attempt(ask: Callable[[], Awaitable[T]], done: anyio.Event) -> None:
        try:
            answer = await ask()
        except RaftmqError as error:
            problems.append(error)
        else:
            answers.append(answer)
            if is_enough(answer):
                tasks.cancel_scope.cancel()
        done.set()

    with one_error():
        async with anyio.create_task_group() as tasks:
            for ask in asks:
                done = anyio.Event()
                tasks.start_soon(attempt, ask, done)
                with anyio.move_on_after(patience_seconds):
                    # Ends with an answer, an error, or the patience; the slow attempt goes on
                    # beside the next.
                    await done.wait()
    return answers, problems


# -- Metadata sources -----------------------------------------------------------------------------
# Which brokers to ask for metadata: one after the other, until an answer is new enough.
#
# Known brokers come first, the best experience first. If none of them answers, the whole cluster
# may have moved, and the bootstrap addresses are dialled again, each with a connection for this one
# request. A slow broker does not delay the next: a process that is stopped looks like a slow one.


ANSWER_SECONDS_MAX = 3.0  # of one broker; the next one is asked after HEDGE_SECONDS anyway
NOT_FOR_CLIENTS = "is it a listener for clients? the voters of the quorum have ports of their own"
NO_METADATA = (
    "a broker is up and has no metadata yet: it has just started, or the quorum has not begun (see"
    " `raftmq quorum status -b` with the voters' port)"
)
HEDGE_SECONDS = 0.4  # far longer than a healthy answer takes: no second request in normal operation


class Sources(NamedTuple):
    """Where metadata come from."""

    bootstrap: Sequence[Address]
    connector: AnyioConnector
    peers: Peers
    random: Random
    experience: Experience

    async def ask(
        self, question: Metadata, *, known: Sequence[int], version: int
    ) -> list[MetadataReply]:
        """Answers, one of them of `version` or newer, unless no known broker is so new.

        Raises:
            Unreachable: no broker has answered with metadata; names all of them and their errors.
        """
        now = anyio.current_time()
        order = self.experience.in_order(known, now=now, random=self.random)
        soon = now + ANSWER_SECONDS_MAX  # a broker that throttles for longer is skipped
        order = [one for one in order if self.experience.quiet_until(one) <= soon] or order
        by_id = [partial(self._ask_known, broker_id, question) for broker_id in order]
        replies, problems = await _ask_all(by_id, version)
        # No known broker answered: the cluster may have moved.
        if not replies:
            addresses = self.random.sample(self.bootstrap, len(self.bootstrap))
            by_address = [partial(self._ask_address, each, question) for each in addresses]
            # Ends when one address answers, or when each has failed within its 3 s.
            replies, more = await _ask_all(by_address, version)
            problems += more
        if not replies:
            # Sorted: they were asked in a random order, and the same news must read the same.
            told = "; ".join(sorted(map(str, problems)))
            has = "metadata yet" if NO_METADATA in told else "answered"
            raise Unreachable(f"no broker has {has}: {told}")
        return replies

    async def _ask_known(self, broker_id: int, question: Metadata) -> MetadataReply:
        """Ask a known broker. It ranks as silent until it has answered, as the wait may be cut
        short.
        """
        experience = self.experience
        # The broker throttles this client; `ask` has left out those that do for long.
        await anyio.sleep_until(experience.quiet_until(broker_id))
        experience.on_doubt(broker_id)
        # dials if there is no connection
        answer = await self.peers.request(broker_id, question, timeout_seconds=ANSWER_SECONDS_MAX)
        now = anyio.current_time()
        experience.on_answer(broker_id, throttle_ms=answer.throttle_ms, now=now)
        return _checked(answer.body)

    async def _ask_address(self, address: Address, question: Metadata) -> MetadataReply:
        """Dial, ask, hang up."""
        name = f"address={address}"
        try:
            with anyio.fail_after(ANSWER_SECONDS_MAX):
                async with self.connector.open(address, name=name) as channel:
                    answer = await channel.request(question, timeout_seconds=ANSWER_SECONDS_MAX)
                    return _checked(answer.body)
        except TimeoutError:
            problem = f"no answer within {ANSWER_SECONDS_MAX:g} s"
        # Every kind of failure becomes one error that names the address.
        except RaftmqError as error:
            problem = str(error).removeprefix(f"{name}: ") or repr(error)
            if VOTERS_MEET in problem:
                raise Unreachable(f"{address} {VOTERS_MEET}") from error
            if isinstance(error, Disconnected):  # the listener did not understand us, or died
                problem += f"; {NOT_FOR_CLIENTS}"
        raise Unreachable(f"{address}: {problem}")


async def _ask_all(
    asks: Sequence[Callable[[], Awaitable[MetadataReply]]], version: int
) -> tuple[list[MetadataReply], list[RaftmqError]]:
    return await ask_in_turn(
        asks, lambda reply: reply.metadata_version >= version, patience_seconds=HEDGE_SECONDS
    )


def _checked(reply: MetadataReply) -> MetadataReply:
    # A broker that has just started, or whose quorum has not begun: ask another one.
    if not reply.brokers:
        raise Unreachable(NO_METADATA)
    return reply


# -- Cluster --------------------------------------------------------------------------------------


T = TypeVar("T")
NAME_BITS = 96  # two programs never choose the same one by chance
_SILENCE = (Disconnected, RequestTimedOut, Unreachable)  # failures in place of an answer


class Cluster:
    """A client's access to a cluster: `async with Cluster(...) as cluster:`

    Args:
        bootstrap: where brokers listen; one that answers is enough.
        random: for backoff, and for which broker is asked first.
        client_id: what this program calls itself in the logs of brokers.

    Attributes:
        bootstrap: where the program says that brokers listen.
        routes: the metadata cache; for reading.
        newest_version: the newest metadata version that any answer has named, -1 before.
        at_close: called when the block ends, by what is still open and may wait.
        clock: the time of its event loop, without the check of `now`; unset before the block.
    """

    clock: Callable[[], float]

    def __init__(
        self,
        bootstrap: Sequence[Address],
        network: AnyioNetwork,
        *,
        random: Random,
        client_id: str = "",
    ) -> None:
        if not bootstrap:
            raise InvalidConfig(["bootstrap: no address; name at least one broker"])
        self.routes, self.bootstrap = Routes(), tuple(bootstrap)
        self._random = random
        self._hello = check_limits(Hello(client_id=client_id, software=SOFTWARE))
        self.newest_version = ABSENT
        self.at_close: set[Callable[[], None]] = set()
        connector = AnyioConnector(network, self._make_hello, RpcLimits())
        self._peers = Peers(connector, random=random)
        self._experience = Experience()
        self._sources = Sources(bootstrap, connector, self._peers, random, self._experience)
        # Made where its loop runs: where the program calls `connect`, another one may.
        self._refreshing: Refreshing
        self._block: BlockTasks | None = None  # made where there is a loop
        self._tasks: TaskGroup | None = None  # of `_run`
        self._is_open = False
        self._loop: EventLoopToken | None = None  # in which it was opened
        self._library: str | None = None  # the one of that loop, as far as it says so

    async def __aenter__(self) -> Self:
        assert self._block is None, "entered twice"
        self._loop, self._library = current_token(), library.name
        self.clock = loop_clock()
        self._refreshing = Refreshing(self._learn, self._random)
        # Shielded: the connections stay until the block ends, even if it is cancelled from outside.
        # Code in the block may have a last request to send, as a group member has (LeaveGroup).
        self._block = BlockTasks(self._run, is_shielded=True)
        await self._block.open()
        self._is_open = True
        return self

    async def _run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._peers.run)
            self._tasks.start_soon(self._refreshing.run)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._block is not None, "left before it was entered"
        self._block.check_loop()
        self._is_open = False
        for close in tuple(self.at_close):
            close()
        return await self._block.close(kind, error, traceback)

    # -- requests --------------------------------------------------------------------------

    def new_attempts(self, *, deadline: float, repeats: RepeatEffect) -> Attempts:
        """For callers with a retry loop of their own."""
        backoff = Backoff(self._random, PAUSES)
        return Attempts(backoff, deadline=deadline, repeats=repeats)

    def new_name(self) -> str:
        """A unique name for a caller that was given none."""
        return f"{self._random.getrandbits(NAME_BITS):x}"

    async def at_leader(
        self,
        topic: str,
        partition: int,
        attempt: Callable[[LeaderPlace], Awaitable[T]],
        *,
        deadline: float,
        repeats: RepeatEffect,
    ) -> T:
        """Run `attempt` with the partition's leader, again and again until it succeeds or must not.

        Raises:
            RaftmqError: of the last attempt, or of the leader lookup; see `Attempts`.
        """
        attempts = self.new_attempts(deadline=deadline, repeats=repeats)
        while True:
            tried: LeaderPlace | None = None
            try:
                await self._know(topic, deadline=deadline)
                tried = self.routes.find(topic, partition)
                return await attempt(self.routes.place(topic, partition))
            except RaftmqError as error:
                # The answer has not named another leader, so metadata must.
                if self._is_stale(error) and self.routes.find(topic, partition) == tried:
                    self.routes.doubt(topic)
                pause = attempts.on_failure(error, now=anyio.current_time())
            with suppress(Unreachable):
                await self._know(topic, deadline=deadline)
            # The same leader: pause; a new one is tried at once
            if self.routes.find(topic, partition) == tried:
                await anyio.sleep_until(min(anyio.current_time() + pause, deadline))
            attempts.check_time(anyio.current_time())

    async def at_any(
        self, attempt: Callable[[int], Awaitable[T]], *, deadline: float, repeats: RepeatEffect
    ) -> T:
        """Run `attempt` with the id of any broker, again and again until it succeeds or must
        not.
        """
        attempts = self.new_attempts(deadline=deadline, repeats=repeats)
        is_stale = False
        while True:
            try:
                if is_stale or not self.routes.addresses:  # brokers may have changed
                    await self.refresh(None, deadline=deadline)
                return await attempt(self.any_broker())
            except RaftmqError as error:  # raised again below, unless another attempt may follow
                is_stale = self._is_stale(error)
                pause = attempts.on_failure(error, now=anyio.current_time())
            # Another broker may be asked next, but a cluster in trouble is not to be flooded.
            await anyio.sleep(pause)
            attempts.check_time(anyio.current_time())

    async def ask(
        self, broker_id: int, body: Request, payload: Sequence[Buffer] = (), *, deadline: float
    ) -> Answer:
        """Send one request, once the broker does not throttle any more; see `Peers.request`.

        Raises:
            InvalidRequest: no broker would accept the body.
            Closed: outside of the block.
        """
        self.check_open()
        self.check_loop()
        check_limits(body)
        await self.wait_allowed(broker_id, deadline=deadline)
        seconds = deadline - anyio.current_time()
        # The throttling has taken all the time.
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            raise Unreachable(f"{type(body).__name__} was not sent: its time is over")
        try:
            answer = await self._peers.request(broker_id, body, payload, timeout_seconds=seconds)
        except RaftmqError as error:
            self._learn_from(broker_id, error)
            raise
        self._learn_from(broker_id, answer)
        return answer

    def ask_now(
        self,
        broker_id: int,
        body: Request,
        payload: Sequence[Buffer],
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        deadline: float,
        now: float,
    ) -> Callable[[], None] | None:
        """As `ask` without a task that waits: `on_outcome` is called once, from the task that reads
        the connection or ends it. It must not wait (decision 0016).

        Args:
            body: within its limits, which are not checked here.

        Returns:
            Withdraws the request: `on_outcome` is not called any more. None: it would have to wait,
            as without a connection, or would fail; nothing was sent, and `ask` is the way.
        """
        channel = self._peers.channel(broker_id)
        is_quiet = self._experience.quiet_until(broker_id) > now
        if channel is None or is_quiet or deadline <= now or not self._is_open:
            return None

        def learn(outcome: Answer | RaftmqError) -> None:
            self._learn_from(broker_id, outcome)
            on_outcome(outcome)

        try:
            call = channel.ask(
                body, learn, timeout_seconds=deadline - now, payload=payload, waits=True
            )
        except RaftmqError:  # nothing was sent: `ask` raises it
            return None
        return partial(channel.forget, call)

    def _learn_from(self, broker_id: int, outcome: Answer | RaftmqError) -> None:
        """Whether the broker answers, and what its answers say beside their bodies."""
        if isinstance(outcome, Answer):
            throttle_ms, now = outcome.throttle_ms, self.clock()
            self._experience.on_answer(broker_id, throttle_ms=throttle_ms, now=now)
            self.newest_version = max(self.newest_version, outcome.metadata_version)
        # Prefer other brokers for a while where there is a choice.
        elif isinstance(outcome, _SILENCE):
            self._experience.on_doubt(broker_id)

    async def wait_allowed(self, broker_id: int, *, deadline: float) -> None:
        """Wait while the broker throttles this client. Not a checkpoint if it does not."""
        while anyio.current_time() < deadline:
            quiet_until = self._experience.quiet_until(broker_id)
            if quiet_until <= anyio.current_time():
                return
            # In a loop, as another answer may have prolonged the throttling meanwhile.
            await anyio.sleep_until(min(quiet_until, deadline))

    async def ask_leader(
        self, place: LeaderPlace, body: Request, payload: Sequence[Buffer] = (), *, deadline: float
    ) -> tuple[Any, bytes | memoryview]:
        """One attempt. The partition's answer, and the payload.

        Raises:
            RaftmqError: also the partition's own error.
        """
        answer = await self.ask(place.leader, body, payload, deadline=deadline)
        found = answer_for(place, answer.body.partitions)
        if told := leader_told(found):  # saves the next attempt a metadata request
            leader, leader_epoch = told
            self.routes.on_leader(
                place.topic_id, place.partition, leader=leader, leader_epoch=leader_epoch
            )
        if error := error_in(found):
            raise error
        return found, answer.payload

    def tell_leader(
        self, place: LeaderPlace, body: Request, payload: Sequence[Buffer] = ()
    ) -> None:
        """Send a request that is not answered (acks=0).

        Raises:
            Unreachable: it was not sent. Definite.
        """
        if self._experience.quiet_until(place.leader) > anyio.current_time():
            raise Unreachable(f"broker {place.leader}: it asks to be left alone")
        if not self._peers.send_one_way(place.leader, check_limits(body), payload):
            raise Unreachable(f"broker {place.leader}: no connection yet, or too much waits")

    # -- metadata --------------------------------------------------------------------------

    async def refresh(self, topic: str | None, *, deadline: float) -> None:
        """Refresh the metadata of `topic`, or, with None, only the list of brokers.

        Raises:
            InvalidRequest: no topic can have that name.
            Unreachable: no broker has answered.
            Closed: outside of the block.
        """
        self.check_open()
        self.check_loop()
        if topic is not None:
            check_limits(Metadata((topic,)))
        with anyio.CancelScope(deadline=deadline):
            await self._refreshing.wait(topic)
            return
        raise Unreachable(self._refreshing.problem or "no broker has answered in time")

    def check_open(self) -> None:
        """Raises Closed: outside of the block."""
        if not self._is_open:
            raise not_open("the client", was_opened=self._block is not None)

    def check_loop(self) -> None:
        """For calls that wait: what the client's tasks set wakes no task of another event loop.

        Raises:
            InvalidRequest: another event loop runs here than the one in which it was opened, or
                none does.
        """
        assert self._loop is not None, "not opened yet"
        try:
            # As anyio's `current_token`, without looking for the backend: this runs for each
            # record that a task waits for.
            is_here = self._loop.backend_class.current_token() is self._loop.native_token
        except RuntimeError:  # a thread without a loop, or with one of the other library
            is_here = False
        # A guest of trio and its host share a thread: each finds the other's loop running, too.
        if not is_here or library.name != self._library:
            raise InvalidRequest(
                "called outside of the event loop in which the client was opened: call it there, "
                "as with anyio.from_thread.run_sync(...) or asyncio.run_coroutine_threadsafe(...);"
                " connect anew in each event loop; or use raftmq.sync, whose calls are for threads"
            )

    def now(self) -> float:
        """The time in its event loop. Raises InvalidRequest in another one, see `check_loop`."""
        self.check_loop()
        return self.clock()

    async def _know(self, topic: str, *, deadline: float) -> None:
        """Refresh the topic's metadata, unless they are cached and not in doubt."""
        if not self.routes.use(topic):
            await self.refresh(topic, deadline=deadline)  # shared with other callers

    def _is_stale(self, error: RaftmqError) -> bool:
        """Whether refreshed metadata may explain the error.

        A broker that cannot be reached explains nothing; the others know whether it still leads.
        Any other error may be due to metadata newer than the cache.
        """
        is_gone = isinstance(error, Unreachable)
        return is_gone or error.refresh_metadata or self.newest_version > self.routes.version

    async def _learn(self, topics: tuple[str, ...]) -> bool:
        replies = await self._sources.ask(
            Metadata(topics[:TOPICS_MAX]),
            known=sorted(self.routes.addresses),
            version=self.newest_version,
        )
        news = [self._take_in(reply) for reply in replies]
        return any(news)

    def _take_in(self, reply: MetadataReply) -> bool:
        is_news = self.routes.take_in(reply, anyio.current_time())
        self.newest_version = max(self.newest_version, reply.metadata_version)
        self._peers.set_addresses(self.routes.addresses)
        self._experience.forget_all_but(self.routes.addresses)
        return is_news

    def any_broker(self) -> int:
        """For a request that any broker can answer; at least one broker must be known."""
        known, now = sorted(self.routes.addresses), anyio.current_time()
        return self._experience.in_order(known, now=now, random=self._random)[0]

    def _make_hello(self) -> Hello:
        return msgspec.structs.replace(self._hello, cluster_id=self.routes.cluster_id)
