"""News for everybody: `python examples/publish_subscribe.py HOST:PORT`.

Each group gets every record, whatever other groups do; within a group its members share them. A
group that comes later reads everything that is still there, and so does one that begins again.
"""

from __future__ import annotations

import sys
import time

import trio

import raftmq
from raftmq.errors import RaftmqError

TOPIC, COUNT = "news", 300
RUN = b"%d/" % time.time_ns()  # records of other runs may be in the topic


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


async def subscribe(mq: raftmq.Client, group: str, seen: set[bytes], over: trio.Event) -> None:
    async with mq.consumer(TOPIC, group=group, start="earliest") as consumer:
        async for batch in consumer.batches():
            seen.update(value for value in batch.values if value and value.startswith(RUN))
            if len(seen) >= COUNT:
                over.set()


async def read_all(mq: raftmq.Client, group: str, *, members: int = 1) -> int:
    """How many different records the members of a group get together."""
    seen: set[bytes] = set()
    over = trio.Event()
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(members):
                nursery.start_soon(subscribe, mq, group, seen, over)
            await over.wait()
            nursery.cancel_scope.cancel()
    return len(seen)


async def main(bootstrap: str) -> None:
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=3, if_not_exists=True)
        async with mq.producer() as producer:
            await producer.send_many(TOPIC, [RUN + b"%d" % number for number in range(COUNT)])
        run = RUN.decode().rstrip("/")
        say(f"billing, with two members: {await read_all(mq, f'billing-{run}', members=2)}")
        say(f"shipping, later: {await read_all(mq, f'shipping-{run}')}")
        await mq.admin.reset_group_offsets(f"billing-{run}", topics=[TOPIC], to="earliest")
        say(f"billing, once more from the beginning: {await read_all(mq, f'billing-{run}')}")


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
