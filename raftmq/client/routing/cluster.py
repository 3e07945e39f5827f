"""`Cluster`: a program's connection to a cluster, over which all its questions go.

Owns the connections, what is known of the metadata, and the one loop in which an operation is tried
again. What an attempt consists of, those who ask know (`producing`, `fetching`, `admin`); whether
there may be another, `attempts`. Nothing is dialled before the first question.

Whatever is cancelled leaves at most a request on its way, whose answer is dropped.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import anyio
import msgspec

from raftmq.client.network.channel import one_error, open_channel
from raftmq.client.network.peers import Peers
from raftmq.client.routing.attempts import PAUSES, Attempts
from raftmq.client.routing.refreshing import Refreshing
from raftmq.client.routing.routes import Routes, answer_for, error_in, leader_told
from raftmq.errors import (
    Closed,
    Disconnected,
    InvalidConfig,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
)
from raftmq.rpc.backoff import Backoff
from raftmq.rpc.protocol import RpcLimits
from raftmq.version import __version__
from raftmq.wire.bodies import ABSENT, TOPICS_MAX, check_limits
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from random import Random
    from types import TracebackType

    from anyio.abc import TaskGroup

    from raftmq.client.network.network import Network
    from raftmq.client.routing.attempts import RepeatEffect
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.model import Address
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.metadata import MetadataReply


# -- Experience -----------------------------------------------------------------------------------
# What a client has met with each broker: who answered lately, and who asks to be left alone. Pure.
#
# Owns the order in which brokers are asked what any of them can answer, and how long a broker may
# keep a client waiting. It decides for nobody whom to ask where only one broker will do.


LATELY_SECONDS = 10.0
THROTTLE_SECONDS_MAX = 30.0  # a broker that asks for more is asked again after so long


class Experience:
    """Of all brokers that are known."""

    def __init__(self) -> None:
        self._answered_at: dict[int, float] = {}
        self._quiet_until: dict[int, float] = {}

    def on_answer(self, broker_id: int, *, throttle_ms: int, now: float) -> None:
        self._answered_at[broker_id] = now
        if throttle_ms:
            quiet_until = now + min(throttle_ms / 1000, THROTTLE_SECONDS_MAX)
            self._quiet_until[broker_id] = max(quiet_until, self.quiet_until(broker_id))

    def on_doubt(self, broker_id: int) -> None:
        """It has not answered, or not yet: whoever has a choice asks somebody else first."""
        self._answered_at.pop(broker_id, None)

    def quiet_until(self, broker_id: int) -> float:
        """When it may be asked again, on the clock of the answers; in the past if it may be now."""
        return self._quiet_until.get(broker_id, -inf)

    def forget_all_but(self, broker_ids: Collection[int]) -> None:
        """What is left are `broker_ids`."""
        for known in (self._answered_at, self._quiet_until):
            for broker_id in known.keys() - set(broker_ids):
                del known[broker_id]

    def in_order(self, broker_ids: Sequence[int], *, now: float, random: Random) -> list[int]:
        """Whom to ask first: 1. who answered lately, 2. all others, 3. who is to be left alone.

        Equals come in any order, so that the load is spread.
        """
        return sorted(
            random.sample(broker_ids, len(broker_ids)), key=lambda it: self._rank(it, now)
        )

    def _rank(self, broker_id: int, now: float) -> int:
        if self.quiet_until(broker_id) > now:
            return 3
        return 1 if now - self._answered_at.get(broker_id, -inf) < LATELY_SECONDS else 2


# -- Hedging --------------------------------------------------------------------------------------
# One question to several brokers, one after the other, and not for the slowest of them to hold up.
#
# Owns the pace: the next one is asked when the one before has failed or its answer will not do, and
# also when it is slow. Whoever is slow may still answer first. Leaves no task behind.


async def ask_in_turn(
    asks: Iterable[Callable[[], Awaitable[T]]],
    is_enough: Callable[[T], bool],
    *,
    patience_seconds: float,
) -> tuple[list[T], list[RaftmqError]]:
    """Answers in the order in which they came, up to the first that is enough; and what failed.

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
                    await done.wait()
    return answers, problems


# -- Sources --------------------------------------------------------------------------------------
# Whom to ask for metadata: one broker after the other, until one of them is new enough.
#
# Owns the way in, by addresses whose brokers are not known yet: one question and one connection for
# it. Known brokers come first, best experience first; if none of them answers, the whole cluster
# may have moved, and the addresses that a program was given count again. Whoever is slow is not
# waited for before the next one is asked: a process that stands still looks like a slow one.


ANSWER_SECONDS_MAX = 3.0  # of one broker
NOT_FOR_CLIENTS = "is it a listener for clients? the voters of the quorum have ports of their own"
HEDGE_SECONDS = 0.4  # without an answer, after which the next broker is asked, too


class Sources(NamedTuple):
    bootstrap: Sequence[Address]
    network: Network
    peers: Peers
    make_hello: Callable[[], Hello]
    limits: RpcLimits
    random: Random
    experience: Experience

    async def ask(
        self, question: Metadata, *, known: Sequence[int], version: int
    ) -> list[MetadataReply]:
        """Answers, one of them of `version` or newer, unless no known broker is so new.

        Raises:
            Unreachable: nobody has answered; names everybody.
        """
        now = anyio.current_time()
        order = self.experience.in_order(known, now=now, random=self.random)
        soon = now + ANSWER_SECONDS_MAX  # whoever wants to be left alone for longer is no help
        order = [one for one in order if self.experience.quiet_until(one) <= soon] or order
        by_id = [partial(self._ask_known, broker_id, question) for broker_id in order]
        replies, problems = await _ask_all(by_id, version)
        if not replies:
            addresses = self.random.sample(self.bootstrap, len(self.bootstrap))
            by_address = [partial(self._ask_address, each, question) for each in addresses]
            replies, more = await _ask_all(by_address, version)
            problems += more
        if not replies:
            raise Unreachable(f"no broker has answered: {'; '.join(map(str, problems))}")
        return replies

    async def _ask_known(self, broker_id: int, question: Metadata) -> MetadataReply:
        """It counts as one that is silent until it has answered: the wait may be cut short."""
        experience = self.experience
        await anyio.sleep_until(experience.quiet_until(broker_id))
        experience.on_doubt(broker_id)
        answer = await self.peers.request(broker_id, question, timeout_seconds=ANSWER_SECONDS_MAX)
        now = anyio.current_time()
        experience.on_answer(broker_id, throttle_ms=answer.throttle_ms, now=now)
        return _checked(answer.body)

    async def _ask_address(self, address: Address, question: Metadata) -> MetadataReply:
        """Dial, ask, hang up."""
        try:
            with anyio.fail_after(ANSWER_SECONDS_MAX):
                stream = await self.network.dial(address)
                hello, name = self.make_hello(), f"address={address}"
                async with open_channel(stream, hello, self.limits, name=name) as channel:
                    answer = await channel.request(question, timeout_seconds=ANSWER_SECONDS_MAX)
                    return _checked(answer.body)
        except TimeoutError:
            problem = f"no answer within {ANSWER_SECONDS_MAX:g} s"
        except (RaftmqError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            problem = str(error) or repr(error)
            if isinstance(error, Disconnected):  # whoever is there did not understand us, or died
                problem += f"; {NOT_FOR_CLIENTS}"
        raise Unreachable(f"{address}: {problem}")


async def _ask_all(
    asks: Sequence[Callable[[], Awaitable[MetadataReply]]], version: int
) -> tuple[list[MetadataReply], list[RaftmqError]]:
    return await ask_in_turn(
        asks, lambda reply: reply.metadata_version >= version, patience_seconds=HEDGE_SECONDS
    )


def _checked(reply: MetadataReply) -> MetadataReply:
    if not reply.brokers:
        raise Unreachable("a broker that has no metadata yet")
    return reply


# -- Cluster --------------------------------------------------------------------------------------


T = TypeVar("T")
NAME_BITS = 96  # by chance, no two are the same
_SILENCE = (Disconnected, RequestTimedOut, Unreachable)  # in place of an answer


class Cluster:
    """`async with Cluster(...) as cluster:`

    Args:
        bootstrap: where brokers listen; one that answers is enough.
        random: for pauses, and for which broker is asked first.
        client_id: what this program calls itself in the logs of brokers.

    Attributes:
        routes: what is known; for reading.
        newest_version: of the metadata that any broker has told of, -1 before.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        network: Network,
        *,
        random: Random,
        client_id: str = "",
        limits: RpcLimits | None = None,
    ) -> None:
        if not bootstrap:
            raise InvalidConfig(["bootstrap: no address; name at least one broker"])
        self.routes = Routes()
        self._random, self._limits = random, limits or RpcLimits()
        self._hello = check_limits(Hello(client_id=client_id, software=f"raftmq {__version__}"))
        self.newest_version = ABSENT
        self._peers = Peers(
            network, make_hello=self._make_hello, random=random, limits=self._limits
        )
        self._experience = Experience()
        self._sources = Sources(
            bootstrap,
            network,
            self._peers,
            self._make_hello,
            self._limits,
            random,
            self._experience,
        )
        self._refreshing = Refreshing(self._learn, random)
        self._tasks: TaskGroup | None = None
        self._scope: anyio.CancelScope | None = None  # of its tasks; made where there is a loop
        self._is_open = False

    async def __aenter__(self) -> Self:
        assert self._tasks is None, "entered twice"
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._scope = anyio.CancelScope(shield=True)
        self._tasks.start_soon(self._run, self._scope)
        self._is_open = True
        return self

    async def _run(self, scope: anyio.CancelScope) -> None:
        """Until the block ends, also if that is cancelled from outside: whoever is still in it may
        have something to say before, as a member of a group has.
        """
        with scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._peers.run)
                tasks.start_soon(self._refreshing.run)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """An error of the body goes its own way, past the tasks, which would make it a group."""
        assert self._tasks is not None, "left before it was entered"
        assert self._scope is not None, "left before it was entered"
        self._is_open = False
        self._scope.cancel()
        self._tasks.cancel_scope.cancel()
        with one_error():
            if isinstance(error, Exception):
                await self._tasks.__aexit__(None, None, None)
                return False
            return await self._tasks.__aexit__(kind, error, traceback)
        raise AssertionError("one_error swallows nothing")

    # -- questions -------------------------------------------------------------------------

    def new_attempts(self, *, deadline: float, repeats: RepeatEffect) -> Attempts:
        """For whoever repeats something that is neither of the following."""
        backoff = Backoff(self._random, PAUSES)
        return Attempts(backoff, deadline=deadline, repeats=repeats)

    def new_name(self) -> str:
        """For whoever has to be told from all others, and has been given no name."""
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
        """What `attempt` returns. It is told where the partition is led, and may be called again.

        Raises:
            RaftmqError: what it raised, or the search for the leader; see `Attempts`.
        """
        attempts = self.new_attempts(deadline=deadline, repeats=repeats)
        while True:
            tried: LeaderPlace | None = None
            try:
                await self._know(topic, deadline=deadline)
                tried = self.routes.find(topic, partition)
                return await attempt(self.routes.place(topic, partition))
            except RaftmqError as error:
                if self._is_stale(error) and self.routes.find(topic, partition) == tried:
                    self.routes.doubt(topic)
                pause = attempts.on_failure(error, now=anyio.current_time())
            with suppress(Unreachable):
                await self._know(topic, deadline=deadline)
            if self.routes.find(topic, partition) == tried:  # nothing new: no hurry
                await anyio.sleep_until(min(anyio.current_time() + pause, deadline))
            attempts.check_time(anyio.current_time())

    async def at_any(
        self, attempt: Callable[[int], Awaitable[T]], *, deadline: float, repeats: RepeatEffect
    ) -> T:
        """The same for what any broker can do; `attempt` is told which one."""
        attempts = self.new_attempts(deadline=deadline, repeats=repeats)
        is_stale = False
        while True:
            try:
                if is_stale or not self.routes.addresses:
                    await self.refresh(None, deadline=deadline)
                return await attempt(self.any_broker())
            except RaftmqError as error:
                is_stale = self._is_stale(error)
                pause = attempts.on_failure(error, now=anyio.current_time())
            await anyio.sleep(pause)
            attempts.check_time(anyio.current_time())

    async def ask(
        self, broker_id: int, body: Request, payload: Sequence[Buffer] = (), *, deadline: float
    ) -> Answer:
        """One attempt, once the broker may be asked; see `Peers.request`.

        Raises:
            InvalidRequest: no broker would take the body.
            Closed: outside of the block.
        """
        self._check_open()
        check_limits(body)
        await self.wait_allowed(broker_id, deadline=deadline)
        seconds = deadline - anyio.current_time()
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            raise Unreachable(f"{type(body).__name__} was not sent: its time is over")
        try:
            answer = await self._peers.request(broker_id, body, payload, timeout_seconds=seconds)
        except _SILENCE:
            self._experience.on_doubt(broker_id)
            raise
        now = anyio.current_time()
        self._experience.on_answer(broker_id, throttle_ms=answer.throttle_ms, now=now)
        self.newest_version = max(self.newest_version, answer.metadata_version)
        return answer

    async def wait_allowed(self, broker_id: int, *, deadline: float) -> None:
        """For as long as the broker has asked to be left alone. Not a checkpoint if it has not."""
        while anyio.current_time() < deadline:
            quiet_until = self._experience.quiet_until(broker_id)
            if quiet_until <= anyio.current_time():
                return
            await anyio.sleep_until(min(quiet_until, deadline))

    async def ask_leader(
        self, place: LeaderPlace, body: Request, payload: Sequence[Buffer] = (), *, deadline: float
    ) -> tuple[Any, bytes | memoryview]:
        """One attempt; what the answer says of the partition, and the payload.

        Raises:
            RaftmqError: also if that is an error.
        """
        answer = await self.ask(place.leader, body, payload, deadline=deadline)
        found = answer_for(place, answer.body.partitions)
        if told := leader_told(found):
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
        """Ask without waiting for an answer.

        Raises:
            Unreachable: it was not sent.
        """
        if self._experience.quiet_until(place.leader) > anyio.current_time():
            raise Unreachable(f"broker {place.leader}: it asks to be left alone")
        if not self._peers.send_one_way(place.leader, check_limits(body), payload):
            raise Unreachable(f"broker {place.leader}: no connection yet, or too much waits")

    # -- metadata --------------------------------------------------------------------------

    async def refresh(self, topic: str | None, *, deadline: float) -> None:
        """Ask who leads the partitions of `topic`, or, with None, only which brokers there are.

        Raises:
            InvalidRequest: no topic can have that name.
            Unreachable: nobody has answered.
            Closed: outside of the block.
        """
        self._check_open()
        if topic is not None:
            check_limits(Metadata((topic,)))
        with anyio.CancelScope(deadline=deadline):
            await self._refreshing.wait(topic)
            return
        raise Unreachable(self._refreshing.problem or "no broker has answered in time")

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed("the client is not open: use it within its `async with` block")

    async def _know(self, topic: str, *, deadline: float) -> None:
        """Refresh what is not known, or has led to a failure."""
        if not self.routes.use(topic):
            await self.refresh(topic, deadline=deadline)

    def _is_stale(self, error: RaftmqError) -> bool:
        """A broker that is not to be reached says nothing; the others know whether it still leads.

        Any other failure may be due to what we have not heard of, if there is such a thing.
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
        is_news = self.routes.take_in(reply)
        self.newest_version = max(self.newest_version, reply.metadata_version)
        self._peers.set_addresses(self.routes.addresses)
        self._experience.forget_all_but(self.routes.addresses)
        return is_news

    def any_broker(self) -> int:
        """For what any broker can answer; there must be one that is known."""
        known, now = sorted(self.routes.addresses), anyio.current_time()
        return self._experience.in_order(known, now=now, random=self._random)[0]

    def _make_hello(self) -> Hello:
        return msgspec.structs.replace(self._hello, cluster_id=self.routes.cluster_id)
