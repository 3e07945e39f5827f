"""How a connection begins: who is there, and whether we talk to them.

Owns the order of the first frames and the rules for refusing that need no state. Both sides send
Hello at once. Two voters then accept each other with Welcome, so that neither side believes in a
connection that the other is about to refuse; guests need none.

    A  Hello ------->  judges it       B  Hello ------->  judges it
       Welcome or Refusal ------->        Welcome or Refusal ------->
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.metadata.raft.messages import (
    REASON_LENGTH_MAX,
    Hello,
    Refusal,
    Role,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from raftmq.metadata.raft.connection import Connection

HANDSHAKE_SECONDS_MAX = 3.0


class Caller(NamedTuple):
    """What is known about the other side before it says anything."""

    dialled: int | None = None  # the voter whom we dialled; None: they came to us
    certificate: int | None = None  # the node id in the certificate
    needs_certificate: bool = False


class Met(NamedTuple):
    """Both of the first are None: it came to nothing, and the connection is closed."""

    hello: Hello | None = None  # of somebody whom we accept
    refusal: Refusal | None = None  # what they answered to ours
    rejected: tuple[Hello, Refusal] | None = None  # somebody whom we do not accept, and why
    is_silent: bool = False  # nothing was heard in time


async def shake_hands(
    connection: Connection, *, own: Hello, judge: Callable[[Hello], Refusal | None]
) -> Met:
    """Introduce `own` and judge the answer; the connection stays open only if all is well.

    Guests introduce themselves with it, too.
    """
    with trio.move_on_after(HANDSHAKE_SECONDS_MAX):
        return await exchange(connection, own, judge)
    connection.close(f"no handshake within {HANDSHAKE_SECONDS_MAX:g} s", is_fault=True)
    return Met(is_silent=True)


async def exchange(
    connection: Connection, own: Hello, judge: Callable[[Hello], Refusal | None]
) -> Met:
    connection.send_soon(own)
    hello = await connection.receive()
    if isinstance(hello, Refusal):
        return refused(connection, Met(None, hello))
    if not isinstance(hello, Hello):
        return out_of_order(connection, hello)
    refusal = judge(hello)
    if refusal is not None:
        await refuse(connection, refusal)
        return Met(rejected=(hello, refusal))
    if hello.role is not Role.VOTER or own.role is not Role.VOTER:
        return Met(hello)
    connection.send_soon(Welcome())
    answer = await connection.receive()
    if isinstance(answer, Refusal):
        return refused(connection, Met(hello, answer))
    return Met(hello) if isinstance(answer, Welcome) else out_of_order(connection, answer)


def refused(connection: Connection, met: Met) -> Met:
    assert met.refusal is not None
    connection.close(f"refused by them: {met.refusal.reason!r}")
    return met


def out_of_order(connection: Connection, message: object) -> Met:
    """`message` is None where the connection has ended by itself."""
    connection.close(f"{type(message).__name__} instead of a handshake", is_fault=True)
    return Met()


async def refuse(connection: Connection, refusal: Refusal) -> None:
    """Say why, and close."""
    connection.send_soon(refusal)
    await connection.finish(f"refused by us: {refusal.reason!r}")


def judge_hello(
    hello: Hello, *, own: Hello, voters: Container[int], caller: Caller
) -> Refusal | None:
    """Why nobody talks to them here; None if nothing speaks against it.

    1. Another protocol version. Not final: an upgrade may be under way.
    2. Another cluster. A visitor need not know the name of the cluster.
    3. A guest has no id to check, but is not whom we dialled.
    4. A voter: see `judge_voter`.
    """
    if hello.protocol_version != own.protocol_version:
        versions = f"version {hello.protocol_version}, here {own.protocol_version}"
        return Refusal(f"the quorum speaks {versions}: upgrade the older node")
    if hello.cluster_id != own.cluster_id and (hello.cluster_id or hello.role is not Role.VISITOR):
        clusters = f"cluster {hello.cluster_id!r}, this is {own.cluster_id!r}"
        return final(f"node {hello.node_id} belongs to {clusters}: check addresses and directories")
    if hello.role is Role.VOTER:
        return judge_voter(hello, own=own, voters=voters, caller=caller)
    if caller.dialled is not None:
        return wrong_address(caller.dialled, "a guest", own.node_id)
    return None


def judge_voter(
    hello: Hello, *, own: Hello, voters: Container[int], caller: Caller
) -> Refusal | None:
    """The rules for voters.

    1. Our own id: two nodes have the same, or an address leads back to us.
    2. An id that is none of the voters'.
    3. An id that the certificate does not confirm.
    4. Not the one who was dialled.
    5. The smaller id dials: two connections at a time would fence each other for ever.
    """
    them, us = hello.node_id, own.node_id
    if them == us:
        if caller.dialled is not None:
            return final(
                f"the address of voter {caller.dialled} leads to a node with the id {us}, as this"
                " one has: every voter needs its own id and its own address"
            )
        return final(f"node id {us} is taken: every voter needs its own")
    if them not in voters:
        return final(f"node {them} is no voter here: check the voters in its settings and in ours")
    if caller.needs_certificate and caller.certificate != them:
        shown = "none" if caller.certificate is None else f"node {caller.certificate}"
        return final(f"node {them} shows a certificate of {shown}: give it its own")
    if caller.dialled not in (None, them):
        return wrong_address(caller.dialled, f"voter {them}", us)
    if caller.dialled is None and them > us:
        return Refusal(
            f"voter {us} dials voter {them}, not the other way round. Where that does not happen,"
            f" the address of voter {them} is wrong in the settings of voter {us}, or is not"
            " reached from there"
        )
    return None


def wrong_address(dialled: int | None, who: str, us: int) -> Refusal:
    """Said to somebody who can do nothing about it: it must name the one who can."""
    return Refusal(
        f"voter {us} dialled voter {dialled} and {who} answered: correct the addresses in the"
        f" settings of voter {us}"
    )


def final(reason: str) -> Refusal:
    return Refusal(reason[:REASON_LENGTH_MAX], is_final=True)
