"""Make a topic, write to it, and read it again: `python examples/cluster_program.py HOST:PORT`.

The address is that of any broker's listener for clients. README says how to start three.
"""

from __future__ import annotations

import sys
import time
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.client.admin import create_topic, wait_leaders
from raftmq.client.cluster import Cluster
from raftmq.client.fetching import fetch
from raftmq.client.producing import produce
from raftmq.errors import RaftmqError, TopicAlreadyExists
from raftmq.rpc.address import parse_address
from raftmq.rpc.network import TcpNetwork
from raftmq.wire.header import iter_batches
from raftmq.wire.records import RecordBatch, encode_batch

if TYPE_CHECKING:
    from raftmq.model import Address

TOPIC = "greetings"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


async def main(address: Address) -> None:
    async with Cluster([address], TcpNetwork(), random=Random()) as cluster:
        try:
            await create_topic(cluster, TOPIC, partition_count=3, replication_factor=3)
        except TopicAlreadyExists:
            say(f"{TOPIC} is there already")
        await wait_leaders(cluster, TOPIC)
        now_ms = int(time.time() * 1000)
        batch = encode_batch(values=[b"hello", b"world"], timestamp=now_ms)
        offset = await produce(cluster, TOPIC, 0, batch)  # acks=all: all that are in sync hold it
        say(f"written at offset {offset}")
        fetched = await fetch(cluster, TOPIC, 0, offset)
        for position, _header in iter_batches(fetched.data):
            for record in RecordBatch.decode(fetched.data, position).records():
                say(f"{record.offset} {record.value!r}")


if __name__ == "__main__":
    try:
        trio.run(main, parse_address(sys.argv[1]))
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
