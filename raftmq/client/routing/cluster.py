"""`Cluster`: a program's connection to a cluster, over which all its questions go.

Owns the connections, what is known of the metadata, and the one loop in which an operation is tried
again. What an attempt consists of, those who ask know (`producing`, `fetching`, `admin`); whether
there may be another, `attempts`. Nothing is dialled before the first question.

Whatever is cancelled leaves at most a request on its way, whose answer is dropped.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
import msgspec

from raftmq.client.network.peers import Peers
from raftmq.client.network.tasks import one_error
from raftmq.client.routing.answers import answer_for, error_in, leader_told
from raftmq.client.routing.attempts import PAUSES, Attempts
from raftmq.client.routing.experience import Experience
from raftmq.client.routing.refreshing import Refreshing
from raftmq.client.routing.routes import Routes
from raftmq.client.routing.sources import Sources
from raftmq.errors import (
    Closed,
    Disconnected,
    InvalidConfig,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
)
from raftmq.rpc.backoff import Backoff
from raftmq.rpc.protocol import Limits
from raftmq.version import __version__
from raftmq.wire.bodies import ABSENT, TOPICS_MAX, check_limits
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random
    from types import TracebackType

    from anyio.abc import TaskGroup

    from raftmq.client.network.network import Network
    from raftmq.client.routing.attempts import Repeats
    from raftmq.client.routing.routes import Place
    from raftmq.model import Address
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.metadata import MetadataReply

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
        limits: Limits | None = None,
    ) -> None:
        if not bootstrap:
            raise InvalidConfig(["bootstrap: no address; name at least one broker"])
        self.routes = Routes()
        self._random, self._limits = random, limits or Limits()
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

    def new_attempts(self, *, deadline: float, repeats: Repeats) -> Attempts:
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
        attempt: Callable[[Place], Awaitable[T]],
        *,
        deadline: float,
        repeats: Repeats,
    ) -> T:
        """What `attempt` returns. It is told where the partition is led, and may be called again.

        Raises:
            RaftmqError: what it raised, or the search for the leader; see `Attempts`.
        """
        attempts = self.new_attempts(deadline=deadline, repeats=repeats)
        while True:
            tried: Place | None = None
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
        self, attempt: Callable[[int], Awaitable[T]], *, deadline: float, repeats: Repeats
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
        self, place: Place, body: Request, payload: Sequence[Buffer] = (), *, deadline: float
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

    def tell_leader(self, place: Place, body: Request, payload: Sequence[Buffer] = ()) -> None:
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
