"""Whom to ask for metadata: one broker after the other, until one of them is new enough.

Owns the way in, by addresses whose brokers are not known yet: one question and one connection for
it. Known brokers come first, in any order, so that the load is spread; if none of them answers, the
whole cluster may have moved, and the addresses that a program was given count again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from raftmq.errors import RaftmqError, Unreachable
from raftmq.rpc.channel import open_channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from raftmq.model import Address
    from raftmq.rpc.limits import Limits
    from raftmq.rpc.network import Network
    from raftmq.rpc.peers import Peers
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.hello import Hello
    from raftmq.wire.messages.metadata import Metadata, MetadataReply

ANSWER_SECONDS_MAX = 3.0  # of one broker; a silent one must not hold up the others
T = TypeVar("T")


class Sources(NamedTuple):
    bootstrap: Sequence[Address]
    network: Network
    peers: Peers
    make_hello: Callable[[], Hello]
    limits: Limits
    random: Random

    async def ask(
        self, question: Metadata, *, known: Sequence[int], version: int
    ) -> list[MetadataReply]:
        """Answers, the last of them of `version` or newer, unless no known broker is so new.

        Raises:
            Unreachable: nobody has answered; names everybody.
        """
        problems: list[str] = []
        by_id = [partial(self._ask_known, broker, question) for broker in self._shuffled(known)]
        replies = await _ask_all(by_id, version, problems)
        if not replies:
            addresses = self._shuffled(self.bootstrap)
            by_address = [partial(self._ask_address, each, question) for each in addresses]
            replies = await _ask_all(by_address, version, problems)
        if not replies:
            raise Unreachable(f"no broker has answered: {'; '.join(problems)}")
        return replies

    def _shuffled(self, items: Sequence[T]) -> list[T]:
        return self.random.sample(items, len(items))

    async def _ask_known(self, broker_id: int, question: Metadata) -> Answer:
        return await self.peers.request(broker_id, question, timeout_seconds=ANSWER_SECONDS_MAX)

    async def _ask_address(self, address: Address, question: Metadata) -> Answer:
        """Dial, ask, hang up."""
        try:
            with trio.fail_after(ANSWER_SECONDS_MAX):
                stream = await self.network.dial(address)
                hello, name = self.make_hello(), f"address={address}"
                async with open_channel(stream, hello, self.limits, name=name) as channel:
                    return await channel.request(question, timeout_seconds=ANSWER_SECONDS_MAX)
        except trio.TooSlowError:
            problem = f"no answer within {ANSWER_SECONDS_MAX:g} s"
        except (RaftmqError, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            problem = str(error) or repr(error)
        raise Unreachable(f"{address}: {problem}")


async def _ask_all(
    asks: Sequence[Callable[[], Awaitable[Answer]]], version: int, problems: list[str]
) -> list[MetadataReply]:
    replies: list[MetadataReply] = []
    for ask in asks:
        try:
            reply: MetadataReply = (await ask()).body
        except RaftmqError as error:
            problems.append(str(error))
            continue
        if not reply.brokers:
            problems.append("a broker that has no metadata yet")
            continue
        replies.append(reply)
        if reply.metadata_version >= version:
            break
    return replies
