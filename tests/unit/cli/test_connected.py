"""The way to a cluster: who is not there, who is somebody else, and how a command ends."""

from __future__ import annotations

import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import click
import pytest
from click.testing import CliRunner, Result

from raftmq.cli.clusters import connected
from raftmq.cli.clusters.connected import BootstrapEntry, is_dev_starting, run_connected
from raftmq.cli.main import Program, main
from raftmq.cli.terminal.exits import CommandError
from raftmq.client.routing.cluster import NO_METADATA
from raftmq.errors import ServerError, TopicAuthorizationFailed, Unreachable
from raftmq.model import Address
from raftmq.rpc.context import CLIENTS_ELSEWHERE
from tests.unit.client.administration.served import serve_bureau

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from raftmq.client.client import Client


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """Where one broker listens."""
    with serve_bureau() as (_, address):
        yield str(address)


def run(
    function: Callable[[Client], Awaitable[object]], bootstrap: str, **options: float
) -> Result:
    """As the one command of a program."""

    @click.group(cls=Program)
    def program() -> None: ...

    @program.command()
    def go() -> None:
        click.echo(f"got {run_connected(function, bootstrap, timeout_seconds=options.get('t'))}")

    return CliRunner().invoke(program, ["go"])


def test_what_comes_back(bootstrap: str) -> None:
    """The result of the function, which gets a client that is connected."""

    async def ask(client: Client) -> int:
        return len(await client.admin.list_topics())

    result = run(ask, bootstrap)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "got 1\n", "")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(TopicAuthorizationFailed("no"), 6), (ServerError("no"), 1), (KeyboardInterrupt(), 130)],
)
def test_how_it_ends(error: BaseException, exit_code: int, bootstrap: str) -> None:
    """Errors keep their exit codes, alone or in a group; no traceback."""

    async def fail(_client: Client) -> None:
        raise error

    async def fail_in_a_task(_client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise error

    for function in (fail, fail_in_a_task):
        result = run(function, bootstrap)
        assert result.exit_code == exit_code
        assert "Traceback" not in result.output


def test_the_time_is_over(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it waits for is cancelled."""
    monkeypatch.setattr(connected, "GRACE_SECONDS", 0.0)

    async def wait(_client: Client) -> None:
        await anyio.sleep_forever()

    result = run(wait, bootstrap, t=0.5)
    assert (result.exit_code, result.stdout) == (5, "")
    assert "no result within" in result.stderr


COMMANDS = [
    "topic list", "topic describe t", "topic create u", "topic alter t -p 3", "topic delete t -y",
    "topic trim t --before-offset 0:1 -y", "cluster health", "cluster status", "cluster info",
    "group list", "group describe g", "group lag g", "group delete g -y",
    "group reset-offsets g --to 1 -y", "group reset-offsets g --to 1 --dry-run",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_listens(command: str) -> None:
    """Each command names every address that it tried, and the way out."""
    result = CliRunner().invoke(main, ["-b", "127.0.0.1:1,127.0.0.1:2", *command.split()])
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr.count("\n") == 1
    for part in ("127.0.0.1:1: ", "127.0.0.1:2: ", "; start the nodes there, or correct -b\n"):
        assert part in result.stderr


def test_somebody_who_says_nothing() -> None:
    """A port that accepts and is silent: the time that was given is enough."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = CliRunner().invoke(
            main, ["topic", "list", "-b", f"127.0.0.1:{port}", "--timeout", "0.1"]
        )
    assert (result.exit_code, result.stdout) == (5, "")
    assert f"127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_environment(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address may come from there."""
    monkeypatch.setenv("RAFTMQ_BOOTSTRAP", f"{bootstrap}, 127.0.0.1:1")
    assert CliRunner().invoke(main, ["topic", "list"]).exit_code == 0


def test_the_environment_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address is told with the place that it came from."""
    monkeypatch.setenv("RAFTMQ_BOOTSTRAP", "nonsense")
    wrong = CliRunner().invoke(main, ["topic", "list"]).stderr
    assert wrong.startswith("raftmq: Invalid value for RAFTMQ_BOOTSTRAP: address 'nonsense': no")
    wrong = CliRunner().invoke(main, ["-b", "typed", "topic", "list"]).stderr
    assert wrong.startswith("raftmq: Invalid value for -b: address 'typed': no")


def test_an_interrupt_leaves_the_connections_alone(bootstrap: str) -> None:
    """Ctrl-C hits no task in its work: the function hears of it, and can still ask the cluster."""
    topics: list[int] = []

    async def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        topics.append(0)

    async def tidy_up(client: Client) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(interrupt)
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                topics.append(len(await client.admin.list_topics()))

    assert run(tidy_up, bootstrap).exit_code == 130
    assert topics == [0, 1]


@pytest.mark.parametrize("told", [NO_METADATA, f"listener 'brokers' {CLIENTS_ELSEWHERE} h:1"])
async def test_a_broker_that_cannot_serve(told: str) -> None:
    """It is up: nobody is told to start one. Its own words name the way out."""
    entry = BootstrapEntry(
        [Address("127.0.0.1", 1)], False, lambda _addresses: False, "start one with"
    )
    failure = await entry._failure(Unreachable(told))
    assert told in str(failure)
    assert "start one with" not in str(failure)


async def test_a_cluster_that_has_begun_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds after `raftmq dev` a command waits for its brokers, and gives up if they end."""
    looks = iter([True, False])
    entry = BootstrapEntry([Address("127.0.0.1", 1)], False, lambda _addresses: next(looks), "help")
    async with AsyncExitStack() as stack:
        with pytest.raises(CommandError, match=r"; help$"):
            await entry.enter(stack, 30.0)
    assert next(looks, None) is None
    assert capsys.readouterr().err.count("raftmq: waiting: ") == 1


def test_no_cluster_of_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nothing is waited for: a wrong address is told at once."""
    monkeypatch.chdir(tmp_path)
    assert not is_dev_starting([Address("127.0.0.1", 9292)])
