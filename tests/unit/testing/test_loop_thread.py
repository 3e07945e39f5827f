"""A loop in a thread: whoever asks gets an answer, and no error and no thread is left behind."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import Closed
from raftmq.sync import loop
from raftmq.sync.loop import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "loop under test"


class Subject:
    """What lives in the loop. `fail` ends it."""

    def __init__(self) -> None:
        self.failure, self.is_failing, self.is_closed = ValueError("broken"), trio.Event(), False

    async def thread_name(self) -> str:
        return threading.current_thread().name

    async def fail(self) -> None:
        self.is_failing.set()
        await trio.sleep_forever()

    async def run(self) -> None:
        await self.is_failing.wait()
        raise self.failure


@asynccontextmanager
async def opened(subject: Subject) -> AsyncIterator[Subject]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.run)
        try:
            yield subject
        finally:
            nursery.cancel_scope.cancel()
            subject.is_closed = True


def thread_of(subject: Subject) -> LoopThread[Subject]:
    return LoopThread(NAME, partial(opened, subject))


def interrupt() -> None:
    """As Ctrl-C does: the main thread, in whatever it waits for."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def is_running() -> bool:
    return any(thread.name == NAME for thread in threading.enumerate())


@pytest.fixture
def subject() -> Subject:
    return Subject()


def test_a_question_is_answered_in_the_loop(subject: Subject) -> None:
    """Asked from the main thread; when the block is left, the thread has ended."""
    with thread_of(subject) as thread:
        assert thread.ask(Subject.thread_name) == NAME
        assert is_running()
    assert subject.is_closed
    assert not is_running()


async def test_a_question_from_a_program_on_trio(subject: Subject) -> None:
    """Another loop of the same kind runs in the asking thread."""
    with thread_of(subject) as thread:
        assert thread.ask(Subject.thread_name) == NAME
        assert await trio.to_thread.run_sync(thread.ask, Subject.thread_name) == NAME


def test_a_question_from_a_program_on_asyncio(subject: Subject) -> None:
    """A loop of another kind runs in the asking thread."""

    async def main() -> None:
        with thread_of(subject) as thread:
            assert thread.ask(Subject.thread_name) == NAME
            assert await asyncio.to_thread(thread.ask, Subject.thread_name) == NAME

    asyncio.run(main())


def test_a_question_that_fails_is_the_asker_s(subject: Subject) -> None:
    """It raises; the loop goes on."""

    async def ask_badly(_: Subject) -> None:
        raise ExceptionGroup("one", [TypeError("badly asked")])

    with thread_of(subject) as thread:
        with pytest.raises(TypeError, match="badly"):
            thread.ask(ask_badly)
        assert thread.ask(Subject.thread_name) == NAME


def test_what_cannot_be_opened_is_told_at_once() -> None:
    """The block does not begin, and the error comes alone."""

    @asynccontextmanager
    async def closed() -> AsyncIterator[None]:
        async with trio.open_nursery():
            raise ValueError("shut")
        yield

    with pytest.raises(ValueError, match="shut"), LoopThread(NAME, closed):
        pytest.fail("it was opened")
    assert not is_running()


def test_a_failure_answers_whoever_waits(subject: Subject) -> None:
    """A question is under way when the loop ends: it gets the error, and so does the next one."""
    with thread_of(subject) as thread:
        for question in (Subject.fail, Subject.thread_name):
            with pytest.raises(ValueError, match="broken"):
                thread.ask(question)  # type: ignore[arg-type]
    assert not is_running()


def fail_unheard(thread: LoopThread[Subject], subject: Subject) -> None:
    """Nobody waits for an answer when it happens."""

    async def let_fail(_: Subject) -> None:
        subject.is_failing.set()

    thread.ask(let_fail)
    for other in threading.enumerate():
        if other.name == NAME:
            other.join()


def test_a_failure_that_nobody_has_met_is_raised_at_the_end(subject: Subject) -> None:
    """The block asks nothing after it."""
    with pytest.raises(ValueError, match="broken"), thread_of(subject) as thread:
        fail_unheard(thread, subject)


def test_a_failure_is_noted_beside_the_error_of_the_block(subject: Subject) -> None:
    """Perhaps it is the reason: the block's own error comes out and names it."""

    def go_wrong() -> None:
        with thread_of(subject) as thread:
            fail_unheard(thread, subject)
            raise KeyError("of the block")

    with pytest.raises(KeyError) as caught:
        go_wrong()
    assert caught.value.__notes__ == [f"{NAME} had failed: ValueError('broken')"]


def test_a_question_after_the_end(subject: Subject) -> None:
    """The block was left: there is nobody to ask."""
    with thread_of(subject) as thread:
        pass
    with pytest.raises(Closed, match="the block was left"):
        thread.ask(Subject.thread_name)


def test_an_error_of_the_block_ends_the_thread(subject: Subject) -> None:
    """It comes out as it is."""
    with pytest.raises(KeyError) as caught, thread_of(subject):
        raise KeyError("of the block")
    assert not hasattr(caught.value, "__notes__")
    assert not is_running()


def test_an_interrupt_while_it_is_opened() -> None:
    """Ctrl-C during a start that takes for ever."""

    @asynccontextmanager
    async def never() -> AsyncIterator[None]:
        interrupt()
        await trio.sleep_forever()
        yield

    with pytest.raises(KeyboardInterrupt), LoopThread(NAME, never):
        pytest.fail("it was opened")
    assert not is_running()


def test_an_interrupt_that_ends_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it comes just before the wait begins: here another thread gets the signal, and the
    one that waits has to look for it."""
    monkeypatch.setattr(loop, "WAIT_SECONDS_MAX", 0.01)

    @asynccontextmanager
    async def never() -> AsyncIterator[None]:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await trio.sleep_forever()
        yield

    with pytest.raises(KeyboardInterrupt), LoopThread(NAME, never):
        pytest.fail("it was opened")
    assert not is_running()


def test_an_interrupt_while_somebody_waits(subject: Subject) -> None:
    """Ctrl-C during a question that takes for ever."""

    async def take_for_ever(_: Subject) -> None:
        interrupt()
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt), thread_of(subject) as thread:
        thread.ask(take_for_ever)
    assert subject.is_closed
    assert not is_running()
