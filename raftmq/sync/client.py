"""`connect` of `raftmq.sync`, and the client that it gives."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from raftmq.client import client as asynchronous
from raftmq.client.producer.options import producer_options
from raftmq.errors import Closed
from raftmq.sync.admin import Admin
from raftmq.sync.block import Block
from raftmq.sync.consumer import Consumer
from raftmq.sync.loop import Loop
from raftmq.sync.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from raftmq.client.consumer.options import ConsumerArguments
    from raftmq.client.producer.options import ProducerArguments

BUFFER_BYTES_MIN = 64 << 10  # that a producer takes for an option


def connect(
    bootstrap: str | Sequence[str] = asynchronous.DEFAULT_BOOTSTRAP,
    *,
    client_id: str = "",
    connect_timeout_ms: float = asynchronous.CONNECT_TIMEOUT_MS,
    **unknown: object,
) -> Client:
    """A connection to a cluster: `with connect("host:9292") as client:`. See `raftmq.connect`."""
    return Client(
        asynchronous.connect(
            bootstrap, client_id=client_id, connect_timeout_ms=connect_timeout_ms, **unknown
        )
    )


class Client:
    """See `connect`. Several threads may use it.

    Attributes:
        admin: topics, their configuration, and how the cluster is.
    """

    def __init__(self, client: asynchronous.Client) -> None:
        self._client, self._loop = client, Loop()
        self._block = Block(self._loop, client)
        self._was_opened = False
        self._consumers: set[Consumer] = set()  # that are open
        self.admin = Admin(self._loop, client.admin)

    def __enter__(self) -> Self:
        if self._was_opened:
            raise Closed("a client is opened once: connect again")
        self._was_opened = True
        self._loop.__enter__()
        try:
            self._block.open()
        except BaseException as error:
            self._loop.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Whatever was not closed before ends here, at once."""
        if not self._loop.is_ours:  # a fork has nothing to close
            return
        with ExitStack() as stack:
            stack.callback(self._loop.__exit__, None, None, None)
            stack.callback(self._block.close, None)
            for consumer in list(self._consumers):
                stack.callback(consumer.close)

    def producer(self, **options: Unpack[ProducerArguments]) -> Producer:
        """A producer: `with client.producer() as producer:`. See `raftmq.Client.producer`."""
        self._loop.check_process()
        checked = producer_options(options)
        handover_bytes = checked.buffer_memory // 4  # the rest is for what the loop has taken
        rest = max(
            checked.buffer_memory - handover_bytes,
            checked.batch_size,
            checked.max_request_size,
            BUFFER_BYTES_MIN,
        )
        options["buffer_memory"] = rest
        producer = self._client.producer(**options)
        return Producer(self._loop, producer, handover_bytes)

    def consumer(self, *topics: str, **options: Unpack[ConsumerArguments]) -> Consumer:
        """A consumer: a context manager, or to be used as it is until the client is closed.

        See `raftmq.Client.consumer`.
        """
        self._loop.check_process()
        return Consumer(self._loop, self._client.consumer(*topics, **options), self._consumers)
