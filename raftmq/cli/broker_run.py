"""The process of one node: its log, its signals, and how its end is told.

Owns the signals and stdout. The first SIGTERM or SIGINT breaks off the start, or else ends the
node in order; from then on signals have their ordinary effect, so that the second one kills.
"""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import trio

from raftmq.broker.broker import Host, open_broker
from raftmq.broker.settings import parse_settings, read_settings
from raftmq.cli.exits import CommandError, ExitCode
from raftmq.cli.overrides import override
from raftmq.errors import InvalidConfig, RaftmqError
from raftmq.rpc.network import TcpNetwork

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from raftmq.broker.broker import Broker
    from raftmq.broker.settings import BrokerSettings
    from raftmq.metadata.image import MetadataImage

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOG_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"

logger = logging.getLogger(__name__)


def run_broker(config: Path, overrides: Sequence[str]) -> int:
    """Until a signal; the exit code."""
    try:
        settings = _settings(config, overrides)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=LOG_LINE)
        trio.run(_Process(settings).run)
    except InvalidConfig as error:
        raise _told([error]) from error
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        if all(isinstance(error, (RaftmqError, OSError)) for error in errors):
            raise _told(errors) from group
        raise  # a bug: shown as it is
    return ExitCode.OK


def _settings(config: Path, overrides: Sequence[str]) -> BrokerSettings:
    values = read_settings(config)
    override(values, overrides)
    return parse_settings(values)


def _told(errors: Sequence[BaseException]) -> CommandError:
    """One line for all that went wrong at once."""
    is_config = all(isinstance(error, InvalidConfig) for error in errors)
    line = "; ".join(dict.fromkeys(" ".join(str(error).split()) for error in errors))
    return CommandError(line, ExitCode.USAGE if is_config else ExitCode.FAILED)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


class _Process:
    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._opening, self._is_open, self._stop_wanted = trio.CancelScope(), False, trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._hear_signals)
            with self._opening:
                async with open_broker(self._settings, Host(TcpNetwork())) as broker:
                    self._is_open = True
                    await self._serve(broker)
            nursery.cancel_scope.cancel()
        logger.info("stopped: node=%d", self._settings.node_id)

    async def _serve(self, broker: Broker) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_ready, broker)
            await self._stop_wanted.wait()
            nursery.cancel_scope.cancel()
        await broker.stop()

    async def _hear_signals(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                logger.info("stopping: signal=%s", signal.Signals(number).name)
                break
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._stop_wanted.set()
        if not self._is_open:
            self._opening.cancel()

    async def _tell_ready(self, broker: Broker) -> None:
        node_id, image = self._settings.node_id, broker.quorum.image
        while not _counts(image, node_id, broker.lifetime.broker_epoch):
            image = await broker.quorum.wait_changed(image.version)
        where = ", ".join(f"{one.name} on {one.bind}" for one in self._settings.listeners)
        logger.info("ready: node=%d", node_id)
        with suppress(OSError):  # nobody reads it: no reason to stop serving
            click.echo(f"ready: node {node_id} of cluster {self._settings.cluster_id}, {where}")


def _counts(image: MetadataImage, node_id: int, broker_epoch: int) -> bool:
    """Whether the cluster knows this very process, and counts on it."""
    me = image.brokers.get(node_id)
    return me is not None and me.broker_epoch == broker_epoch and image.is_active(node_id)
