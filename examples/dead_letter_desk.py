"""Workers that fail now and then, and a desk: `python examples/dead_letter_desk.py HOST:PORT`.

Two workers of a group book invoices. Some cannot be read, and the bank is down for some: these
become dead letters, so that they hold up nobody. Then the desk looks at them, the program is
repaired, and the desk sends them back: in the end every invoice is booked once. The desk types
commands, as a person does: `raftmq dlq`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

import raftmq

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC, GROUP = "desk.invoices", "invoice-desk"
INVOICES, WORKERS, PARTITIONS, ATTEMPTS = 120, 2, 4, 3
UNREADABLE, DECLINED = 40, 30  # every so many
SECONDS_MAX = 60.0


class BankDownError(Exception):
    """Later it would work."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# -- The work --------------------------------------------------------------------------------------


@dataclass
class Books:
    """Attributes:
    read: how the program reads an amount; it is repaired later.
    is_bank_up: it is not, at first.
    booked: how often each invoice was.
    """

    read: Callable[[str], float] = float
    is_bank_up: bool = False
    booked: Counter[int] = field(default_factory=Counter)

    def book(self, text: str) -> None:
        number, amount = text.split(" ")
        self.read(amount)
        if int(number) % DECLINED == 0 and not self.is_bank_up:
            raise BankDownError("the bank does not answer")
        self.booked[int(number)] += 1


async def work(mq: raftmq.Client, books: Books) -> None:
    """Until it is cancelled."""
    async with mq.consumer(TOPIC, group=GROUP, start="earliest") as consumer:
        async for record in consumer:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    books.book(record.text())
                    break
                except Exception as error:
                    if attempt == ATTEMPTS:
                        await consumer.reject(record, error, attempts=attempt)


async def work_until_done(mq: raftmq.Client, books: Books) -> None:
    """All workers, until the group has read the last invoice."""
    async with trio.open_nursery() as nursery:
        for _ in range(WORKERS):
            nursery.start_soon(work, mq, books)
        with trio.fail_after(SECONDS_MAX):
            while not await is_done(mq):  # noqa: ASYNC110  # the group's progress has no event
                await trio.sleep(0.2)
        nursery.cancel_scope.cancel()


async def is_done(mq: raftmq.Client) -> bool:
    try:
        lags = await mq.admin.group_lag(GROUP)
    except raftmq.GroupIdNotFound:  # none has joined yet
        return False
    return len(lags) == PARTITIONS and not any(one.lag for one in lags)


# -- The desk --------------------------------------------------------------------------------------


async def desk(bootstrap: str, *words: str) -> None:
    """What a person types, and sees."""
    say(f"$ raftmq dlq {' '.join(words)}")
    command = [sys.executable, "-m", "raftmq", "-b", bootstrap, "dlq", *words]
    done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT)
    say(done.stdout.decode().rstrip())


async def main(bootstrap: str) -> None:
    books = Books()
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=PARTITIONS, if_not_exists=True)
        async with mq.producer() as producer:
            numbers = range(INVOICES)
            await producer.send_many(TOPIC, numbers, value=invoice, key=str)
        await work_until_done(mq, books)
        say(f"{len(books.booked)} of {INVOICES} invoices are booked")
        await desk(bootstrap, "list", GROUP)
        await desk(bootstrap, "show", GROUP, "--error", "bank")
        books.is_bank_up = True
        await desk(bootstrap, "redrive", GROUP, "--error", "bank")
        books.read = lambda amount: float(amount.replace(",", "."))
        await desk(bootstrap, "redrive", GROUP)
        await work_until_done(mq, books)
    is_once = set(books.booked.values()) == {1} and len(books.booked) == INVOICES
    if not is_once:
        sys.exit(f"WRONG: {books.booked}")
    say(f"{len(books.booked)} invoices, each of them once")


def invoice(number: int) -> str:
    return f"{number} {'12,80' if number % UNREADABLE == 7 else '17.50'}"


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9292")
    except raftmq.RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
