"""Work for later: `python examples/delayed_jobs.py HOST:PORT`.

A shop holds what is ordered for two seconds. With each order a job is sent that is due then and
gives the goods back; whoever pays before has the job cancelled, by the handle that stands in the
order's row. A courier who does not answer is asked again later, with a growing delay: the job sends
itself once more, and its worker waits for nothing.

    RocketMQ                             here
    setDelayTimeSec(2)                   producer.send(..., delay=2)
    setDeliverTimeMs(...)                producer.send(..., deliver_at=...)
    setDelayTimeLevel(3)                 producer.send(..., delay_level=3)
    recallMessage(topic, handle)         mq.admin.cancel_scheduled(handle)
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import trio

import raftmq
from raftmq.errors import CannotCancel, RaftmqError

if TYPE_CHECKING:
    from raftmq import ConsumerRecord

TOPIC, GROUP = "shop.later", "shop.clerks"
RUN = f"{time.time_ns()}"  # jobs of other runs may be in the topic
HOLD_SECONDS, ORDERS, PAID = 2.0, 6, (1, 2, 5)
ASKED_TIMES = 3  # until the courier answers


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class Shop:
    """Its database: what has become of each order of this run."""

    def __init__(self) -> None:
        self.handles: dict[int, str] = {}  # as text, as a column of a table has it
        self.given_back: list[int] = []
        self.early = 0
        self.courier_came = trio.Event()
        self.is_empty = trio.Event()

    def give_back(self, order: int, record: ConsumerRecord) -> None:
        assert record.due is not None, "each job here was sent with a delay"
        self.early += time.time() * 1000 < record.due
        self.given_back.append(order)
        if len(self.given_back) == ORDERS - len(PAID):
            self.is_empty.set()


async def work(mq: raftmq.Client, producer: raftmq.Producer, shop: Shop) -> None:
    """The clerks: until both kinds of jobs are done."""

    async def handle(record: ConsumerRecord) -> None:
        run, kind, number = record.text().split("/")
        if run != RUN:
            return
        if kind == "give back":
            shop.give_back(int(number), record)
        elif int(number) < ASKED_TIMES:  # no answer: again later, and later each time
            seconds = 0.2 * 2 ** int(number)
            await producer.send(TOPIC, f"{RUN}/ask/{int(number) + 1}", delay=seconds)
        else:
            say(f"the courier answers when he is asked for the {int(number) + 1}th time")
            shop.courier_came.set()

    await mq.process(TOPIC, group=GROUP, handler=handle, stop=shop.is_empty)


async def main(bootstrap: str) -> None:
    shop = Shop()
    async with raftmq.connect(bootstrap) as mq, mq.producer() as producer:
        await mq.admin.create_topic(TOPIC, if_not_exists=True)
        for order in range(ORDERS):
            sent = await producer.send(TOPIC, f"{RUN}/give back/{order}", delay=HOLD_SECONDS)
            shop.handles[order] = str(sent.schedule_handle)
        await producer.send(TOPIC, f"{RUN}/ask/0")
        waiting = await mq.admin.scheduled(TOPIC)
        say(f"{len(waiting.records)} jobs wait")
        for order in PAID:
            await mq.admin.cancel_scheduled(raftmq.ScheduleHandle.parse(shop.handles[order]))
        say(f"orders {', '.join(map(str, PAID))} are paid")
        with trio.fail_after(30):
            await work(mq, producer, shop)
            await shop.courier_came.wait()
        say(f"given back: {', '.join(map(str, sorted(shop.given_back)))}; {shop.early} too early")
        late = raftmq.ScheduleHandle.parse(shop.handles[0])
        try:
            await mq.admin.cancel_scheduled(late)
        except CannotCancel as error:
            say(f"who pays now is too late: {error.reason}")


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
