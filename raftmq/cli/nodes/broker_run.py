"""The process of `raftmq broker`: settings, logging, signals, and the line about how it ended.

Owns the signals and stdout. The first SIGTERM or SIGINT cancels the start, or else stops the broker
in order; from then on signals have their default effect, so that the second one kills.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click
import trio

from raftmq.broker.broker import NodeEnvironment, open_broker
from raftmq.broker.meta import check_directory
from raftmq.broker.settings import SettingOrigin, parse_settings, read_settings
from raftmq.cli.nodes.overrides import override, override_by_variables
from raftmq.cli.nodes.startup_hints import ListeningNetwork, told
from raftmq.cli.terminal.exits import CommandError, ExitCode, leaves_of
from raftmq.disk.files import OsFiles
from raftmq.errors import InvalidConfig, RaftmqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from raftmq.broker.broker import Broker
    from raftmq.broker.settings import BrokerSettings
    from raftmq.metadata.image import MetadataImage

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOG_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"

logger = logging.getLogger("raftmq.cli")


def run_broker(config: Path, overrides: Sequence[str]) -> int:
    """Until a signal; the exit code."""
    settings = None
    try:
        settings = _settings(config, overrides)
        for warning in settings.warnings:
            with suppress(OSError):  # stderr is closed or full: no reason not to serve
                click.echo(f"raftmq: warning: {warning}", err=True)
        # Read-only and before the log begins, so that a wrong directory is one line and changes
        # nothing.
        check_directory(
            OsFiles(read_only=True), settings.directory, (settings.cluster_id, settings.node_id)
        )
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=LOG_LINE)
        trio.run(_Process(settings).run)
    except RaftmqError as error:
        raise _failure([error], settings) from error
    # What tasks of the broker raise comes in groups.
    except BaseExceptionGroup as group:
        errors = list(leaves_of(group))
        # Expected failures (a taken port, a failed disk) become one line, even several of them at
        # once.
        if all(isinstance(error, (RaftmqError, OSError)) for error in errors):
            raise _failure(errors, settings) from group
        raise  # a bug: shown as it is
    return ExitCode.OK


def _settings(config: Path, overrides: Sequence[str]) -> BrokerSettings:
    """Merge the file, above it the environment, above both the command line."""
    values, problems, origins = read_settings(config), list[str](), dict[str, SettingOrigin]()
    with _gathered(problems):
        override_by_variables(values, os.environ, origins)
    with _gathered(problems):
        override(values, overrides, origins)
    with _gathered(problems):
        settings = parse_settings(values, origins)
    if problems:
        raise InvalidConfig(problems)
    return settings


@contextmanager
def _gathered(problems: list[str]) -> Iterator[None]:
    """Collect the problems of all layers before any of them is reported."""
    try:
        yield
    except InvalidConfig as error:
        problems += error.problems


def _failure(errors: Sequence[BaseException], settings: BrokerSettings | None) -> CommandError:
    """One line for each problem with the settings; all other errors share one line."""
    problems = [
        problem
        for error in errors
        for problem in (error.problems if isinstance(error, InvalidConfig) else [])
    ]
    # `dict.fromkeys`: the same wrong value may be reported by several layers.
    if problems and all(isinstance(error, InvalidConfig) for error in errors):
        lines = (" ".join(problem.split()) for problem in problems)
        return CommandError("\n".join(dict.fromkeys(lines)), ExitCode.USAGE)
    said = dict.fromkeys(told(error, settings) for error in errors)
    return CommandError("; ".join(said), ExitCode.FAILED)


class _Process:
    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._opening, self._is_open, self._stop_wanted = trio.CancelScope(), False, trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            # Waits until the handlers are installed: a signal during the start must not be lost.
            await nursery.start(self._hear_signals)
            # Its own scope: a signal during the start cancels the start alone, which cleans up
            # after itself.
            with self._opening:
                async with open_broker(
                    self._settings, NodeEnvironment(ListeningNetwork(self._settings))
                ) as broker:
                    self._is_open = True
                    await self._serve(broker)
            nursery.cancel_scope.cancel()
        logger.info("stopped: node=%d", self._settings.node_id)

    async def _serve(self, broker: Broker) -> None:
        # Becoming ready may take as long as the cluster likes; a signal cancels that wait.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_ready, broker)
            # Until the first signal.
            await self._stop_wanted.wait()
            nursery.cancel_scope.cancel()
        # Hands over leaderships, flushes the logs, and is bounded in time by the broker itself.
        await broker.stop()

    async def _hear_signals(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                logger.info("stopping: signal=%s", signal.Signals(number).name)
                break
        # From here on a second signal kills the process.
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._stop_wanted.set()
        # Still starting: there is no broker to stop in order.
        if not self._is_open:
            self._opening.cancel()

    async def _tell_ready(self, broker: Broker) -> None:
        node_id, image = self._settings.node_id, broker.quorum.image
        while not _counts(image, node_id, broker.lifetime.broker_epoch):
            # Until the next change of the metadata; a cluster without a quorum never gets further
            # than this.
            image = await broker.quorum.wait_changed(image.version)
        where = ", ".join(f"{one.name} on {one.bind}" for one in self._settings.listeners)
        logger.info("ready: node=%d", node_id)
        with suppress(OSError):  # stdout is closed or full: no reason not to serve
            click.echo(f"ready: node {node_id} of cluster {self._settings.cluster_id}, {where}")


def _counts(image: MetadataImage, node_id: int, broker_epoch: int) -> bool:
    """Whether this very process (by its broker epoch) is registered and active."""
    me = image.brokers.get(node_id)
    return me is not None and me.broker_epoch == broker_epoch and image.is_active(node_id)
