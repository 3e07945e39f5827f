"""Whom to ask for metadata: one broker after the other, until one of them is new enough.

Owns the way in, by addresses whose brokers are not known yet: one question and one connection for
it. Known brokers come first, best experience first; if none of them answers, the whole cluster may
have moved, and the addresses that a program was given count again. Whoever is slow is not waited
for before the next one is asked: a process that stands still looks like a slow one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.network.channel import open_channel
from raftmq.client.routing.hedging import ask_in_turn
from raftmq.errors import Disconnected, RaftmqError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from raftmq.client.network.network import Network
    from raftmq.client.network.peers import Peers
    from raftmq.client.routing.experience import Experience
    from raftmq.model import Address
    from raftmq.rpc.protocol import Limits
    from raftmq.wire.messages.hello import Hello
    from raftmq.wire.messages.metadata import Metadata, MetadataReply

ANSWER_SECONDS_MAX = 3.0  # of one broker
NOT_FOR_CLIENTS = "is it a listener for clients? the voters of the quorum have ports of their own"
HEDGE_SECONDS = 0.4  # without an answer, after which the next broker is asked, too


class Sources(NamedTuple):
    bootstrap: Sequence[Address]
    network: Network
    peers: Peers
    make_hello: Callable[[], Hello]
    limits: Limits
    random: Random
    experience: Experience

    async def ask(
        self, question: Metadata, *, known: Sequence[int], version: int
    ) -> list[MetadataReply]:
        """Answers, one of them of `version` or newer, unless no known broker is so new.

        Raises:
            Unreachable: nobody has answered; names everybody.
        """
        now = anyio.current_time()
        order = self.experience.in_order(known, now=now, random=self.random)
        soon = now + ANSWER_SECONDS_MAX  # whoever wants to be left alone for longer is no help
        order = [one for one in order if self.experience.quiet_until(one) <= soon] or order
        by_id = [partial(self._ask_known, broker_id, question) for broker_id in order]
        replies, problems = await _ask_all(by_id, version)
        if not replies:
            addresses = self.random.sample(self.bootstrap, len(self.bootstrap))
            by_address = [partial(self._ask_address, each, question) for each in addresses]
            replies, more = await _ask_all(by_address, version)
            problems += more
        if not replies:
            raise Unreachable(f"no broker has answered: {'; '.join(map(str, problems))}")
        return replies

    async def _ask_known(self, broker_id: int, question: Metadata) -> MetadataReply:
        """It counts as one that is silent until it has answered: the wait may be cut short."""
        experience = self.experience
        await anyio.sleep_until(experience.quiet_until(broker_id))
        experience.on_doubt(broker_id)
        answer = await self.peers.request(broker_id, question, timeout_seconds=ANSWER_SECONDS_MAX)
        now = anyio.current_time()
        experience.on_answer(broker_id, throttle_ms=answer.throttle_ms, now=now)
        return _checked(answer.body)

    async def _ask_address(self, address: Address, question: Metadata) -> MetadataReply:
        """Dial, ask, hang up."""
        try:
            with anyio.fail_after(ANSWER_SECONDS_MAX):
                stream = await self.network.dial(address)
                hello, name = self.make_hello(), f"address={address}"
                async with open_channel(stream, hello, self.limits, name=name) as channel:
                    answer = await channel.request(question, timeout_seconds=ANSWER_SECONDS_MAX)
                    return _checked(answer.body)
        except TimeoutError:
            problem = f"no answer within {ANSWER_SECONDS_MAX:g} s"
        except (RaftmqError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            problem = str(error) or repr(error)
            if isinstance(error, Disconnected):  # whoever is there did not understand us, or died
                problem += f"; {NOT_FOR_CLIENTS}"
        raise Unreachable(f"{address}: {problem}")


async def _ask_all(
    asks: Sequence[Callable[[], Awaitable[MetadataReply]]], version: int
) -> tuple[list[MetadataReply], list[RaftmqError]]:
    return await ask_in_turn(
        asks, lambda reply: reply.metadata_version >= version, patience_seconds=HEDGE_SECONDS
    )


def _checked(reply: MetadataReply) -> MetadataReply:
    if not reply.brokers:
        raise Unreachable("a broker that has no metadata yet")
    return reply
