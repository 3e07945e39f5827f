"""The blocking SDK: the calls of `raftmq.connect` for scripts, notebooks and worker processes.

    with raftmq.sync.connect("127.0.0.1:9292") as client, client.producer() as producer:
        producer.send("orders", b"hello")

A background thread runs the event loop (`loop.py`); the other modules hand calls over to it. Ctrl-C
ends a wait at once. A connection belongs to the process that has opened it: after a fork it refuses
to work.
"""

# ruff: noqa: E402
from raftmq.extras import require_extra

require_extra("sync", "raftmq.sync")  # before the first import that needs it

from raftmq.sync.admin import Admin
from raftmq.sync.client import Client, connect
from raftmq.sync.consumer import Consumer
from raftmq.sync.exactly_once import exactly_once
from raftmq.sync.handover import Delivery
from raftmq.sync.producer import Producer
from raftmq.sync.shared import Member, SharedTransaction, SharedVersion
from raftmq.sync.transaction import Transaction

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "Delivery",
    "Member",
    "Producer",
    "SharedTransaction",
    "SharedVersion",
    "Transaction",
    "connect",
    "exactly_once",
]
