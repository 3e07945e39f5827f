"""The two shells of a channel, opened over any stream: what is said of one is said of both.

Owns no expectations. Tests of virtual time are marked with SHELLS: both run on trio. Others are
decorated with `in_every_shell`, which has them run on asyncio as well.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial, wraps
from inspect import Parameter, Signature
from typing import TYPE_CHECKING

import anyio
import pytest
import trio

from raftmq.client.network import channel as anyio_channel
from raftmq.rpc import trio_channel
from raftmq.rpc.protocol import RpcLimits
from tests.simulation.client_network import ClientNetwork, TranslatedStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from raftmq.client.network.network import Stream
    from raftmq.rpc.channel import Channel, Connector
    from raftmq.rpc.network import Network
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.hello import Hello

BACKENDS = {"trio": "trio", "anyio-trio": "trio", "anyio-asyncio": "asyncio"}
SHELLS = pytest.mark.parametrize("shell", ["trio", "anyio"])  # both on trio, in virtual time
SECONDS_MAX = 30.0  # of a test that hangs


def open_channel(
    shell: str,
    stream: Stream | trio.abc.Stream,
    hello: Hello,
    limits: RpcLimits | None = None,
    *,
    name: str = "server",
) -> AbstractAsyncContextManager[Channel]:
    is_of_trio = isinstance(stream, trio.abc.Stream)
    if shell == "trio":
        own = stream if is_of_trio else TrioStream(stream)
        return trio_channel.open_channel(own, hello, limits, name=name)
    own = TranslatedStream(stream) if is_of_trio else stream
    return anyio_channel.open_channel(own, hello, limits, name=name)


def connector(shell: str, network: Network, make_hello: Callable[[], Hello]) -> Connector:
    if shell == "trio":
        return trio_channel.TrioConnector(network, make_hello)
    return anyio_channel.AnyioConnector(ClientNetwork(network), make_hello, RpcLimits())


def in_every_shell(test: Callable[[str], Awaitable[None]]) -> Callable[..., None]:
    """`test(shell)` as a plain function, which starts a loop of its own, in real time."""

    @wraps(test)
    def run(shell: str) -> None:
        anyio.run(partial(_bounded, test, shell), backend=BACKENDS[shell])

    run.__signature__ = Signature([Parameter("shell", Parameter.KEYWORD_ONLY)])  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]  # or it would be taken for a test of trio's
    return pytest.mark.parametrize("shell", BACKENDS)(run)


async def _bounded(test: Callable[[str], Awaitable[None]], shell: str) -> None:
    with anyio.fail_after(SECONDS_MAX):
        await test(shell)


class TrioStream(trio.abc.Stream):
    """A stream of programs as one of trio."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def send_all(self, data: Buffer) -> None:
        with _translated():
            await self._stream.send(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        with _translated():
            return await self._stream.receive(max_bytes or 1 << 16)

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except anyio.BrokenResourceError as error:
        raise trio.BrokenResourceError(str(error)) from error
    except anyio.ClosedResourceError as error:
        raise trio.ClosedResourceError(str(error)) from error
