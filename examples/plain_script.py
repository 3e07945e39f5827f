"""The blocking calls, in a script without async: `python examples/plain_script.py HOST:PORT`."""

from __future__ import annotations

import sys

from raftmq.errors import RaftmqError
from raftmq.sync import connect

TOPIC = "measurements"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main(bootstrap: str) -> None:
    with connect(bootstrap) as mq:
        mq.admin.create_topic(TOPIC, partitions=2, if_not_exists=True)
        failed = []
        with mq.producer() as producer:
            for number in range(1000):
                producer.send_nowait(
                    TOPIC,
                    f"{number * 0.5:.1f}",
                    key=number % 10,
                    on_delivery=lambda error, _metadata: failed.append(error) if error else None,
                )
        say(f"sent 1000, {len(failed)} failed")
        records = mq.consumer(TOPIC, start="earliest").records(timeout=1)
        say(f"read {sum(1 for _ in records)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
