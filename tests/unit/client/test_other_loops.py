"""A client that is used from another event loop than the one that opened it, or never closed."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
import trio

import raftmq
from raftmq.client.producer.delivery import Delivery
from raftmq.errors import Closed, InvalidRequest, OutcomeUnknown
from tests.unit.client.backends import BACKENDS, on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any

    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer
    from raftmq.testing.server import Server

SECONDS_MAX = 10.0  # of a call that should fail at once
ADDRESS_NEVER_DIALLED = "127.0.0.1:1"


async def bounded(call: Callable[[], Awaitable[object]]) -> object:
    with anyio.fail_after(SECONDS_MAX):
        return await call()


async def elsewhere(call: Callable[[], Awaitable[object]], backend: str) -> BaseException | None:
    """Call it in a thread with a loop of its own. Returns its error."""

    def run() -> BaseException | None:
        try:
            anyio.run(bounded, call, backend=backend)
        except Exception as error:
            return error
        return None

    return await anyio.to_thread.run_sync(run)


@on_trio_and_asyncio
async def test_a_thread_with_a_loop_of_its_own(
    raftmq_broker: Server, raftmq_topic: str, backend: str
) -> None:
    """It uses what another thread's loop has opened: each call names the mistake and a way out, and
    none waits; in its own loop all goes on."""
    topic = raftmq_topic
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(topic)
        async with mq.producer() as producer, mq.consumer(topic, start="earliest") as consumer:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: mq.admin.create_topic("other"),
                lambda: mq.producer().open(),
                lambda: mq.consumer(topic).open(),
                lambda: producer.send("other", b"x"),
                lambda: producer.send_many(topic, [b"x"]),
                producer.flush,
                consumer.__anext__,
                consumer.end_offsets,
            ]
            for call in calls:
                error = await elsewhere(call, backend)
                assert isinstance(error, InvalidRequest), error
                assert "outside of the event loop" in str(error)
                assert "raftmq.sync" in str(error)
            await producer.send(topic, b"here")  # its partition is known from now on
            assert isinstance(
                await elsewhere(lambda: producer.send(topic, b"x"), backend), InvalidRequest
            )
            assert (await anext(consumer)).value == b"here"


@on_trio_and_asyncio
async def test_a_refused_call_finishes_nothing(
    raftmq_broker: Server, raftmq_topic: str, backend: str
) -> None:
    """Another thread asks for the next record by mistake, or commits, then work on the one at hand
    fails: it comes again (C3)."""
    topic, group = raftmq_topic, f"{raftmq_topic}-group"
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(topic)
        async with mq.producer() as producer:
            await producer.send(topic, b"x")

        async def fail_in_work() -> None:
            async with mq.consumer(topic, group=group, start="earliest") as consumer:
                record = await anext(consumer)
                for call in (consumer.__anext__, partial(consumer.commit, record)):
                    error = await elsewhere(call, backend)
                    assert isinstance(error, InvalidRequest), error
                with pytest.raises(InvalidRequest, match="outside of the event loop"):
                    await anyio.to_thread.run_sync(consumer.processing, record)
                raise ValueError("work fails")

        with pytest.raises(ValueError, match="work fails"):
            await fail_in_work()
        async with mq.consumer(topic, group=group, start="earliest") as consumer:
            assert (await anext(consumer)).offset == 0


@on_trio_and_asyncio
async def test_a_refused_seek_changes_nothing(
    raftmq_broker: Server, raftmq_topic: str, backend: str
) -> None:
    """A thread without a loop seeks, pauses and resumes: nothing has moved after that."""
    key = raftmq_topic, 0
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic)
        async with mq.consumer(raftmq_topic, start="earliest") as consumer:
            for call in (
                partial(consumer.seek, *key, offset=7),
                partial(consumer.pause, key),
                partial(consumer.resume, key),
            ):
                with pytest.raises(InvalidRequest, match="outside of the event loop"):
                    await anyio.to_thread.run_sync(call)
            assert not consumer.paused
            assert consumer.position(*key) in (0, None)  # None: its leader has not said it yet


@on_trio_and_asyncio
async def test_a_delivery_that_is_awaited_elsewhere(
    raftmq_broker: Server, raftmq_topic: str, backend: str
) -> None:
    """The record is on its way, so the error must not say that nothing happened."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic)
        async with mq.producer(linger_ms=60_000) as producer:
            # Each waits for metadata first, then in its batch.
            for offset in range(2):
                waiting = await producer.enqueue(raftmq_topic, b"x")
                error = await elsewhere(partial(awaited, waiting), backend)
                assert isinstance(error, OutcomeUnknown), error
                assert "it is sent" in str(error)
                await producer.flush()
                assert (await waiting).offset == offset


async def awaited(delivery: Awaitable[object]) -> object:
    return await delivery


def test_two_loops_in_turn(raftmq_broker: Server) -> None:
    """One thread runs another loop while that of the client stands still."""
    first = asyncio.new_event_loop()
    try:
        mq = first.run_until_complete(raftmq.connect(raftmq_broker.bootstrap).open())
        with pytest.raises(InvalidRequest, match="outside of the event loop"):
            asyncio.run(mq.admin.create_topic("other"))  # type: ignore[arg-type]
        first.run_until_complete(mq.aclose())
    finally:
        first.close()


# -- In the loop, and in none of its tasks; in one of two loops of a thread -----------------------


async def called_back(call: Callable[[], object]) -> object:
    """What it returns or raises in a callback of asyncio's loop."""
    found: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def run() -> None:
        try:
            found.set_result(call())
        except Exception as error:
            found.set_exception(error)

    found.get_loop().call_soon(run)
    return await found


def test_callbacks_of_the_loop(raftmq_broker: Server, raftmq_topic: str) -> None:
    """A timer or a signal handler sends, seeks and pauses: it runs in the loop, and in no task."""

    async def use() -> None:
        async with raftmq.connect(raftmq_broker.bootstrap) as mq:
            await mq.admin.create_topic(raftmq_topic, partitions=1)
            async with mq.producer() as producer:
                send = partial(producer.send_nowait, raftmq_topic, b"x")
                # The first one waits for metadata, the second is the first of its batch.
                for offset in range(2):
                    delivery = await called_back(send)
                    assert isinstance(delivery, Delivery)
                    assert (await delivery).offset == offset
            async with mq.consumer(raftmq_topic, start="earliest") as consumer:
                for offset in (0, 1, 0):
                    assert (await anext(consumer)).offset == offset
                    if offset == 1:  # a long poll is on its way: nothing else is there
                        await called_back(partial(consumer.pause, (raftmq_topic, 0)))
                        await called_back(partial(consumer.seek, raftmq_topic, 0, offset=0))
                        await called_back(partial(consumer.resume, (raftmq_topic, 0)))

    # Not by anyio, which would tell callbacks that asyncio runs.
    asyncio.run(bounded(use))  # type: ignore[arg-type]


@asynccontextmanager
async def beside() -> AsyncIterator[Callable[[Callable[[], Awaitable[object]]], Awaitable[Any]]]:
    """A loop of trio as a guest of that of asyncio; what it yields calls there."""
    loop = asyncio.get_running_loop()
    token: asyncio.Future[trio.lowlevel.TrioToken] = loop.create_future()
    done: asyncio.Future[Any] = loop.create_future()
    is_over = trio.Event()

    async def guest() -> None:
        token.set_result(trio.lowlevel.current_trio_token())
        await is_over.wait()

    trio.lowlevel.start_guest_run(
        guest,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=done.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    there = await token

    async def call(function: Callable[[], Awaitable[object]]) -> object:
        ended: asyncio.Future[object] = loop.create_future()

        async def run() -> None:
            try:
                ended.set_result(await bounded(function))
            except Exception as error:
                ended.set_exception(error)

        there.run_sync_soon(trio.lowlevel.spawn_system_task, run)
        return await ended

    try:
        yield call
    finally:
        there.run_sync_soon(is_over.set)
        (await done).unwrap()


def test_two_loops_of_a_thread(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Trio runs as a guest of asyncio, as in a window's program: each calls what the other has
    opened, which is refused, as it would wait for ever; their own clients work."""

    async def use() -> None:
        def connect() -> Client:
            return raftmq.connect(raftmq_broker.bootstrap)

        async with connect() as mq, beside() as in_trio:
            await mq.admin.create_topic(raftmq_topic)
            other = await in_trio(lambda: connect().open())
            theirs = await in_trio(lambda: other.producer().open())
            async with mq.producer() as ours:
                for call in (partial(ours.send, raftmq_topic, b"x"), ours.flush):
                    with pytest.raises(InvalidRequest, match="outside of the event loop"):
                        await in_trio(call)
                for call in (partial(theirs.send, raftmq_topic, b"x"), theirs.flush):
                    with pytest.raises(InvalidRequest, match="outside of the event loop"):
                        await bounded(call)
                await ours.send(raftmq_topic, b"x")
                await in_trio(partial(theirs.send, raftmq_topic, b"x"))
            await in_trio(theirs.aclose)
            await in_trio(other.aclose)

    asyncio.run(use())


# -- Never closed ---------------------------------------------------------------------------------


async def opened(server: Server, topic: str) -> tuple[Client, Producer]:
    mq = await raftmq.connect(server.bootstrap).open()
    await mq.admin.create_topic(topic)
    producer = await mq.producer(linger_ms=60_000).open()
    await producer.send_many(topic, [b"delivered"])  # it has its id, so nothing begins at the end
    for _ in range(3):
        await producer.enqueue(topic, b"x")
    return mq, producer


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_that_has_ended(raftmq_broker: Server, raftmq_topic: str, backend: str) -> None:
    """`asyncio.run(open)`, then `asyncio.run(use)`: the error says what has closed it, and Python's
    warning what was left open, with the number of records that are lost."""
    kept: list[Any] = list(anyio.run(opened, raftmq_broker, raftmq_topic, backend=backend))
    for call in (partial(kept[1].send, raftmq_topic, b"x"), kept[1].flush):
        with pytest.raises(Closed, match=r"event loop of its open\(\) has ended: .* within one"):
            anyio.run(bounded, call, backend=backend)
    with pytest.raises(Closed, match=r"event loop of its open\(\) has ended"):
        kept[0].producer()
    del call
    with pytest.warns(ResourceWarning, match="unclosed") as caught:
        forget(kept)
    texts = sorted(str(each.message) for each in caught)
    assert texts[0].startswith("unclosed <Client of "), texts
    assert texts[1].startswith("unclosed <Producer with "), texts
    assert texts[1].endswith("records that were not delivered yet: 3"), texts


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_closed_warns_of_nothing(raftmq_broker: Server, backend: str) -> None:
    """Opened and closed, never opened, failed while it was opened, or a block: no warning."""

    async def use() -> None:
        mq = await raftmq.connect(raftmq_broker.bootstrap).open()
        mq.producer()
        async with mq.producer():
            pass
        await (await mq.producer().open()).aclose()
        await mq.aclose()
        failing = raftmq.connect(ADDRESS_NEVER_DIALLED, connect_timeout_ms=10)
        with pytest.raises(raftmq.errors.RaftmqError):
            await failing.open()

    anyio.run(use, backend=backend)
    gc.collect()


def test_blocking_ones(raftmq_broker: Server, raftmq_topic: str) -> None:
    """A client and a producer of threads, likewise."""
    mq = raftmq.sync.connect(raftmq_broker.bootstrap).open()
    mq.admin.create_topic(raftmq_topic)
    forget([mq.producer().open()])  # nothing is lost: it ends with its client
    kept = [mq.producer(linger_ms=60_000).open()]
    for _ in range(2):
        kept[0].enqueue(raftmq_topic, b"x")
    with pytest.warns(ResourceWarning, match=r"unclosed <Producer with .* not delivered yet: 2$"):
        forget(kept)
    loop, clients = mq._loop, [mq]
    del mq
    with pytest.warns(ResourceWarning, match=r"unclosed <Client of .*: it was opened by open\(\)$"):
        forget(clients)
    loop.__exit__(None, None, None)


@on_trio_and_asyncio
async def test_a_call_that_waits_is_no_record(raftmq_broker: Server) -> None:
    """Columns of a topic that is not there wait, with no record handed in: none is counted."""
    async with (
        raftmq.connect(raftmq_broker.bootstrap) as mq,
        mq.producer() as producer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(partial(producer.enqueue_columns, "missing", values=[b"x"]))
        await anyio.wait_all_tasks_blocked()
        assert producer._undelivered() == 0
        tasks.cancel_scope.cancel()


def test_a_producer_in_use_is_counted(raftmq_broker: Server, raftmq_topic: str) -> None:
    """The last reference to a blocking producer goes while its loop sends: what is counted for the
    warning changes meanwhile."""
    is_over = threading.Event()
    with raftmq.sync.connect(raftmq_broker.bootstrap) as mq:
        mq.admin.create_topic(raftmq_topic, partitions=20)
        with mq.producer(linger_ms=0) as producer, ThreadPoolExecutor(1) as pool:

            def send() -> None:
                while not is_over.is_set():
                    for key in range(20):
                        producer.enqueue(raftmq_topic, b"x", key=key)
                    producer.flush()

            sending = pool.submit(send)
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-6)
            try:
                for _ in range(30_000):
                    producer._producer._undelivered()
            finally:
                sys.setswitchinterval(interval)
                is_over.set()
            sending.result()


def forget(kept: list[Any]) -> None:
    kept.clear()
    gc.collect()


PROGRAMS = {
    "asyncio": "import asyncio, raftmq\nmq = raftmq.connect(sys.argv[1])\n"
    "async def main():\n    global producer\n    await mq.open()\n"
    "    producer = await mq.producer().open()\n"
    "    for _ in range(2): producer.send_nowait('t', b'x')\nasyncio.run(main())\n",
    "blocking": "import raftmq\nmq = raftmq.sync.connect(sys.argv[1]).open()\n"
    "producer = mq.producer(linger_ms=60_000).open()\n"
    "for _ in range(2): producer.enqueue('t', b'x')\n",
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_the_end_of_a_program(raftmq_broker: Server, case: str) -> None:
    """What its globals hold open is named when the interpreter ends, and nothing fails there. A log
    tells of records that were not delivered, also where no warnings are shown."""
    program = f"import logging, sys\nlogging.basicConfig()\n{PROGRAMS[case]}print('end')"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program, raftmq_broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr
    assert "ResourceWarning: unclosed <Client of " in done.stderr
    assert "ResourceWarning: unclosed <Producer with" in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("WARNING:raftmq.client:")]
    assert len(told) == 1, done.stderr
    assert "never closed: undelivered_records=2 <Producer with" in told[0]
    assert "Traceback" not in done.stderr, done.stderr
