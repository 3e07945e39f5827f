"""Runs a command with a connected client: event loop, time-outs, Ctrl-C, unreachable brokers.

Owns the event loop of such a command, the time that it may take, and the messages about a cluster
that cannot be reached. Errors of the tree go through to `main.py`, which knows their exit codes;
connection errors are explained here, where it is known which addresses were tried.
"""

from __future__ import annotations

import logging
import math
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from raftmq.cli.clusters.bootstrap import bootstrap_addresses, bootstrap_way_out
from raftmq.cli.clusters.wait_reason import WaitedFor, WaitReason, with_reason
from raftmq.cli.terminal.exits import CommandError, ExitCode, exit_code_of, leaves_of
from raftmq.cli.terminal.profiles import chosen_profile
from raftmq.client.client import Client
from raftmq.client.routing.cluster import NO_METADATA
from raftmq.errors import RaftmqError, Unreachable
from raftmq.rpc.context import CLIENTS_ELSEWHERE
from raftmq.wire.foreign import NO_CLIENTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.model import Address

T = TypeVar("T")

CLIENT_ID = "raftmq-cli"
CONNECT_SECONDS_MAX = 10.0  # a running broker answers in milliseconds, a firewall never
# After --timeout, before everything is cancelled: the calls inside end at --timeout themselves, and
# know better what they were waiting for.
GRACE_SECONDS = 1.0
VISIT_SECONDS_MAX = 0.8  # to ask whether an address is a voter's; must end within the grace
# Ctrl-C is raised at await points only: a connection that is interrupted in the middle of its work
# could not be used any more to leave a group or to delete a topic.
CTRL_C = {"restrict_keyboard_interrupt_to_checkpoints": True}
WATCH_SECONDS = 1.0  # between answers that a person watches
ANSWER_SECONDS_MAX = 5.0  # for one answer of several, so that a broker that hangs is not the last
CLEAR = "\x1b[H\x1b[J"  # ANSI: cursor to the upper left corner, erase what follows
PAUSE_SECONDS = 0.5  # between attempts to connect, of commands that wait for the cluster


def run_connected(
    function: Callable[[Client], Awaitable[T]],
    bootstrap: str | None,
    *,
    timeout_seconds: float | None = None,
    is_patient: bool = False,
    group: str | None = None,
) -> T:
    """Run `function` with a client that a broker has answered already, and return its result.

    Args:
        bootstrap: the option after the verb; see `bootstrap_addresses`.
        timeout_seconds: for all of it; None: no limit.
        is_patient: try again until a broker answers, and say on stderr what is waited for.
        group: a group whose coordinator has to answer.

    Raises:
        CommandError: no broker was reached, or the time is over.
        RaftmqError: what `function` raises.
        KeyboardInterrupt: Ctrl-C; everything was cancelled.
    """
    addresses = bootstrap_addresses(bootstrap)
    quiet_logs()
    # Without a time limit, and where a command waits on purpose, it explains its waiting itself.
    wanted = None if timeout_seconds is None or is_patient else WaitedFor((), (), group, True)
    entry = BootstrapEntry(addresses, is_patient, is_dev_starting, bootstrap_way_out(bootstrap))
    run = partial(_run, function, entry, timeout_seconds, wanted)
    try:
        return anyio.run(run, backend="trio", backend_options=CTRL_C)
    except BaseExceptionGroup as group:
        raise _only_one(group) from None


def run_admin(
    ask: Callable[[Admin], Awaitable[T]],
    bootstrap: str | None,
    timeout_seconds: float,
    *,
    group: str | None = None,
) -> T:
    """`run_connected` for calls of the admin, each of which may take all of the time."""
    return run_connected(
        lambda client: ask(client.admin.with_timeout(timeout_seconds)),
        bootstrap,
        timeout_seconds=timeout_seconds,
        group=group,
    )


def watch(
    ask: Callable[[Admin], Awaitable[T]],
    report: Callable[[T], object],
    bootstrap: str | None,
    timeout_seconds: float,
    *,
    as_json: bool,
) -> int:
    """Ask and report every second until Ctrl-C."""
    is_screen = sys.stdout.isatty() and not as_json

    async def look(client: Client) -> None:
        while True:
            found, problem = await try_ask(
                client.admin, ask, min(timeout_seconds, ANSWER_SECONDS_MAX)
            )
            sys.stdout.write(CLEAR if is_screen else "")
            # Watching goes on without an answer: a failover is what people watch.
            if found is not None:
                report(found)
            elif as_json:
                sys.stderr.write(f"raftmq: {problem}\n")
            else:
                sys.stdout.write(f"{problem}\n")
                sys.stdout.flush()
            await anyio.sleep(WATCH_SECONDS)

    run_connected(look, bootstrap, is_patient=True)
    return ExitCode.OK


async def try_ask(
    admin: Admin, ask: Callable[[Admin], Awaitable[T]], seconds: float
) -> tuple[T | None, str]:
    """The answer; or None, and a line that says why no broker has answered."""
    try:
        # 0.1: near a deadline one more answer is worth a moment; 0 would fail without asking.
        return await ask(admin.with_timeout(max(seconds, 0.1))), ""
    except RaftmqError as error:
        # Waiting does not help, as with a client that is not authorised.
        if exit_code_of(error) is not ExitCode.UNREACHABLE:
            raise
        return None, f"no answer: {error}"


def quiet_logs() -> None:
    """Commands print one line of their own; without a handler Python prints log warnings, too."""
    logging.getLogger("raftmq").addHandler(logging.NullHandler())


async def _run(
    function: Callable[[Client], Awaitable[T]],
    entry: BootstrapEntry,
    timeout_seconds: float | None,
    wanted: WaitedFor | None,
) -> T:
    """Run `function`; without `wanted` it explains its own waiting."""
    grace = math.inf if timeout_seconds is None else timeout_seconds + GRACE_SECONDS
    silence: WaitReason | None = None
    # The last resort: `function` should end at `timeout_seconds` with a better message.
    with anyio.move_on_after(grace):
        async with AsyncExitStack() as stack:
            client = await entry.enter(stack, timeout_seconds)
            # `explained` prints why it waits, and adds that to errors.
            if wanted is not None:
                silence = WaitReason(client.admin, wanted)
                await stack.enter_async_context(silence.explained())
            return await function(client)
    line = f"no result within {timeout_seconds:g} s: see --timeout"
    reason = "" if silence is None else silence.reason
    raise CommandError(with_reason(line, reason), ExitCode.UNREACHABLE)


class BootstrapEntry:
    """Connects to a cluster at some addresses, once or until it answers.

    Args:
        is_starting: the cluster there has begun to start: then it is waited for, too.
        way_out: what to do where nothing answers.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        is_patient: bool,
        is_starting: Callable[[Sequence[Address]], bool],
        way_out: str,
    ) -> None:
        self._addresses, self._is_patient = addresses, is_patient
        self._is_starting, self._way_out = is_starting, way_out

    async def enter(self, stack: AsyncExitStack, timeout_seconds: float | None) -> Client:
        """Raises CommandError: no broker has answered."""
        seconds = math.inf if timeout_seconds is None else timeout_seconds
        deadline, said = anyio.current_time() + seconds, ""
        while True:
            left = max(deadline - anyio.current_time(), 0.0)
            try:
                return await stack.enter_async_context(open_client(self._addresses, left))
            except Unreachable as error:
                is_patient = self._is_patient or self._is_starting(self._addresses)
                if not is_patient or left <= PAUSE_SECONDS:
                    raise await self._failure(error) from error
                # Print each reason once, not twice a second.
                if str(error) != said:
                    said = str(error)
                    sys.stderr.write(f"raftmq: waiting: {said}\n")
            await anyio.sleep(PAUSE_SECONDS)

    async def _failure(self, error: Unreachable) -> CommandError:
        voters = await find_voters(self._addresses)
        missing = [str(one) for one in self._addresses if str(one) not in str(error)]
        asked = f" (asked: {', '.join(missing)})" if missing else ""
        # Where a broker has answered, none has to be started, and the error names the way out.
        is_there = any(told in str(error) for told in (NO_METADATA, CLIENTS_ELSEWHERE))
        what = "; ".join(voters) if voters else f"{error}{asked}"
        if not (voters or is_there):
            what += f"; {self._way_out}"
        return CommandError(what, ExitCode.UNREACHABLE)


def is_dev_starting(addresses: Sequence[Address]) -> bool:
    """`raftmq dev` of the directory that it takes by itself is starting a broker at one of them."""
    from raftmq.local.cluster import LocalCluster
    from raftmq.local.plan import DIRECTORY_DEFAULT

    try:
        nodes = LocalCluster.attach(DIRECTORY_DEFAULT).status()
    except (RaftmqError, OSError):  # there is none, or it is not ours to read
        return False
    return any(one.state == "starting" and one.address in addresses for one in nodes)


def open_client(addresses: Sequence[Address], seconds: float = CONNECT_SECONDS_MAX) -> Client:
    """Entering it raises Unreachable if no broker answers in time."""
    milliseconds = min(seconds, CONNECT_SECONDS_MAX) * 1000
    return Client(
        addresses,
        client_id=chosen_profile().client_id or CLIENT_ID,
        connect_timeout_ms=milliseconds,
    )


async def find_voters(addresses: Sequence[Address]) -> list[str]:
    """A line with advice for each address that is a voter's port and serves no clients."""
    # Only where a command has failed: the quorum's code would slow the start of each one.
    import trio

    from raftmq.metadata.raft.net.observer_service import ask_status
    from raftmq.rpc.network import TcpNetwork

    found: dict[Address, str] = {}

    async def visit(address: Address) -> None:
        try:
            status = await ask_status(await TcpNetwork().dial(address))
        except (RaftmqError, OSError, trio.BrokenResourceError):  # no voter, or it is down
            return
        found[address] = (
            f"{address} is where the voters of cluster {status.cluster_id!r} meet, and"
            f" {NO_CLIENTS}, which the settings of node {status.node_id} name"
        )

    with anyio.move_on_after(VISIT_SECONDS_MAX):
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                tasks.start_soon(visit, address)
    return [found[address] for address in addresses if address in found]


def _only_one(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """KeyboardInterrupt if there is one; else the first expected error; a bug as a group."""
    leaves = list(leaves_of(group))
    # Errors of tasks that Ctrl-C has cancelled do not matter then.
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return KeyboardInterrupt()
    is_told = all(isinstance(leaf, (RaftmqError, CommandError, OSError)) for leaf in leaves)
    return leaves[0] if is_told or len(leaves) == 1 else group
