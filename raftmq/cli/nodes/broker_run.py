"""The process of `raftmq broker`: settings, logging, signals, and the line about how it ended.

Owns the signals and stdout. The first SIGTERM or SIGINT cancels the start, or else stops the broker
in order; from then on signals have their default effect, so that the second one kills.
"""

from __future__ import annotations

import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import trio

from raftmq.broker.broker import NodeEnvironment, open_broker
from raftmq.cli.nodes.node_log import begin_log
from raftmq.cli.nodes.node_settings import failure, settings_of
from raftmq.cli.nodes.notify import ALIVE, READY, STOPPING, ServiceManager
from raftmq.cli.nodes.start_checks import check_start, warn
from raftmq.cli.nodes.startup_hints import ListeningNetwork, is_lack
from raftmq.cli.terminal.exits import ExitCode, leaves_of
from raftmq.errors import RaftmqError
from raftmq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from raftmq.broker.broker import Broker
    from raftmq.broker.settings import BrokerSettings
    from raftmq.metadata.image import MetadataImage

NOTIFY_SECONDS_MAX = 30.0  # then systemd hears that the node is up, though it waits for others
SIGNALS = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger("raftmq.cli")


def run_broker(config: Path, overrides: Sequence[str]) -> int:
    """Until a signal; the exit code."""
    settings = None
    try:
        settings, _ = settings_of(config, overrides)
        warn(settings)
        # Before the log begins and anything is touched: all problems together, one line each.
        check_start(settings, is_trial=False)
        begin_log(settings.log)
        roles = "voter,broker" if settings.is_voter else "broker"
        told = "starting: raftmq=%s node=%d cluster=%s roles=%s directory=%s"
        at = settings.directory
        logger.info(told, __version__, settings.node_id, settings.cluster_id, roles, at)
        trio.run(_Process(settings).run)
    except RaftmqError as error:
        raise failure([error], settings) from error
    # What tasks of the broker raise comes in groups.
    except (BaseExceptionGroup, MemoryError, RuntimeError) as group:
        errors = list(leaves_of(group))
        # Expected failures (a taken port, a failed disk) become one line, even several of them at
        # once. Where memory or threads are lacking all other errors follow from that.
        lacking = list(filter(is_lack, errors))
        if lacking or all(isinstance(error, (RaftmqError, OSError)) for error in errors):
            raise failure(lacking or errors, settings) from group
        raise  # a bug: shown as it is
    return ExitCode.OK


class _Process:
    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._opening, self._is_open, self._stop_wanted = trio.CancelScope(), False, trio.Event()
        self._manager, self._is_ready = ServiceManager(os.environ), trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_manager)
            nursery.start_soon(self._tell_alive)
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
        self._manager.tell(STOPPING, status="hands over its leaderships, and flushes its logs")
        # From here on a second signal kills the process.
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._stop_wanted.set()
        # Still starting: there is no broker to stop in order.
        if not self._is_open:
            self._opening.cancel()

    async def _tell_manager(self) -> None:
        """A node that waits for others is up, too: it must not hold up a host that boots, nor a
        script that starts one host after the other."""
        with trio.move_on_after(NOTIFY_SECONDS_MAX):
            await self._is_ready.wait()
        if not self._is_ready.is_set():
            self._manager.tell(READY, status="waits for the cluster, or recovers its logs")
        await self._is_ready.wait()
        self._manager.tell(READY, status="in service")

    async def _tell_alive(self) -> None:
        """As long as the event loop turns, twice in the time that systemd allows."""
        while self._manager.watchdog_seconds is not None:
            self._manager.tell(ALIVE)
            await trio.sleep(self._manager.watchdog_seconds / 2)

    async def _tell_ready(self, broker: Broker) -> None:
        node_id, image = self._settings.node_id, broker.quorum.image
        while not _counts(image, node_id, broker.lifetime.broker_epoch):
            # Until the next change of the metadata; a cluster without a quorum never gets further
            # than this.
            image = await broker.quorum.wait_changed(image.version)
        where = ", ".join(f"{one.name} on {one.bind}" for one in self._settings.listeners)
        logger.info("ready: node=%d", node_id)
        self._is_ready.set()
        with suppress(OSError):  # stdout is closed or full: no reason not to serve
            click.echo(f"ready: node {node_id} of cluster {self._settings.cluster_id}, {where}")


def _counts(image: MetadataImage, node_id: int, broker_epoch: int) -> bool:
    """Whether this very process (by its broker epoch) is registered and active."""
    me = image.brokers.get(node_id)
    return me is not None and me.broker_epoch == broker_epoch and image.is_active(node_id)
