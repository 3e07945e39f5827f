"""Read again from a point in time, and at one's own pace: `python examples/replay.py HOST:PORT`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import anyio

import raftmq
from raftmq.errors import RaftmqError

TOPIC = "temperatures"
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
START = TODAY - timedelta(days=1)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


async def main(bootstrap: str) -> None:
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=1, if_not_exists=True)
        async with mq.producer() as producer:
            for hour in range(24):  # a day of measurements, each with its own time
                taken = START + timedelta(hours=hour)
                await producer.enqueue(TOPIC, str(hour + 4), timestamp=taken)
        await read(mq)


async def read(mq: raftmq.Client) -> None:
    middle = START + timedelta(hours=12)
    async with mq.consumer(assign=[(TOPIC, 0)], start=middle) as consumer:
        record = await anext(consumer)
        when = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        say(
            f"from the middle of the day on: offset {record.offset}, {record.value!r}, {when:%H:%M}"
        )
        consumer.seek(TOPIC, 0, offset=record.offset - 2)
        say(f"two before: {(await anext(consumer)).value!r}")
        consumer.pause((TOPIC, 0))
        with anyio.move_on_after(0.2):
            await anext(consumer)
        consumer.resume((TOPIC, 0))
        say(f"after a pause it goes on: {(await anext(consumer)).value!r}")


if __name__ == "__main__":
    try:
        anyio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
