"""Send a few records and read them back, on asyncio: `python examples/quickstart.py HOST:PORT`.

`raftmq dev` starts a cluster to try it on. The same code runs under trio.
"""

from __future__ import annotations

import asyncio
import sys

import raftmq
from raftmq.errors import RaftmqError

TOPIC = "greetings"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


async def main(bootstrap: str) -> None:
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=3, if_not_exists=True)
        async with mq.producer() as producer:
            for name in ("Ada", "Grace", "Barbara"):
                sent = await producer.send(TOPIC, f"hello, {name}", key=name)
                say(f"{name}: partition {sent.partition}, offset {sent.offset}")
        async with mq.consumer(TOPIC, start="earliest") as consumer:
            left = sum((await consumer.end_offsets()).values())
            async for record in consumer:  # it would wait for more at the end
                say(f"read {record.text()!r} from partition {record.partition}")
                left -= 1
                if not left:
                    break


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292"))
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
