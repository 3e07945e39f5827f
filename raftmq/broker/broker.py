"""The broker process: composition of one node, its task tree, and the order of start and shutdown.

Owns which objects there are and which tasks run (docs/ARCHITECTURE.md draws it); decides nothing
else. A node that is among the voters is a voter of the quorum, any other one an observer; either
way it hosts partitions. (Kafka: KafkaServer, BrokerServer)

    directory locked - metadata opened - logs recovered - listening - registered - serving
    stop: leaders moved away - listeners closed - logs flushed - clean mark - directory unlocked
"""

from __future__ import annotations

import logging
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import trio

from raftmq.broker.broker_clock import BrokerClock
from raftmq.broker.cluster_event_log import ClusterEventLog
from raftmq.broker.controller_leadership import ControllerLeadership
from raftmq.broker.controller_link import ControllerLink
from raftmq.broker.groups.coordinator import GroupCoordinator
from raftmq.broker.groups.group_requests import GroupRequests, MemberRequests
from raftmq.broker.groups.offset_requests import OffsetExpiry, OffsetRequests
from raftmq.broker.lifetime import (
    BrokerEpoch,
    BrokerProfile,
    Lifetime,
    LifetimeEnvironment,
    wait_known,
)
from raftmq.broker.meta import open_meta
from raftmq.broker.metadata_changes import MetadataChanges
from raftmq.broker.replication.copy_budget import CopyBudget
from raftmq.broker.replication.fetchers import Fetchers
from raftmq.broker.replication.isr_proposals import IsrProposals
from raftmq.broker.replication.replica_repair import DamageReports
from raftmq.broker.replication.replicas import HighWatermarks, Replicas
from raftmq.broker.requests.elections import ElectionRequests
from raftmq.broker.requests.fetch import FetchRequests, ReplicaFetchRequests
from raftmq.broker.requests.fetch_sessions import FetchPurgatory
from raftmq.broker.requests.metadata import MetadataRequests, TopicDescriptions
from raftmq.broker.requests.moves import MoveRequests
from raftmq.broker.requests.offsets import (
    ListOffsetsRequests,
    LogDescriptions,
    RecordDeletion,
)
from raftmq.broker.requests.produce import ProduceRequests
from raftmq.broker.requests.producer_fencing import ProducerFencing
from raftmq.broker.requests.producer_ids import ProducerIdAllocation
from raftmq.broker.requests.proposals import ControllerRequests
from raftmq.broker.requests.scheduled import ScheduledRequests
from raftmq.broker.requests.topics import TopicConfigRequests, TopicRequests
from raftmq.broker.settings import BROKERS
from raftmq.broker.transactions.coordinator import TransactionCoordinator
from raftmq.broker.transactions.leading import LedTransactions
from raftmq.broker.transactions.overdue import OverdueRequests
from raftmq.disk.files import OsFiles, allow_many_files
from raftmq.metadata.commands import Endpoint
from raftmq.metadata.raft.background import open_background
from raftmq.metadata.raft.engine.timing import Timing
from raftmq.metadata.raft.observer import open_observer
from raftmq.metadata.raft.opening import open_quorum
from raftmq.metadata.raft.settings import QuorumSettings
from raftmq.model import Address
from raftmq.partition.storage.directory import open_log_directory, run_in_thread, wall_clock_ms
from raftmq.rpc.context import ServerIdentity
from raftmq.rpc.peers import Peers
from raftmq.rpc.protocol import RpcLimits, connections_within, logs_within
from raftmq.rpc.server import RpcServer
from raftmq.rpc.trio_channel import TrioConnector
from raftmq.version import SOFTWARE
from raftmq.wire.messages.hello import Hello

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from random import Random

    from raftmq.broker.meta import MetaFile
    from raftmq.broker.settings import BrokerSettings, ListenerSettings
    from raftmq.disk.files import Files
    from raftmq.disk.thread import RunSync
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.network import Network
    from raftmq.rpc.server import Handler, Handlers
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.transactions import (
        EndTxn,
        EndTxnReply,
        TransactionsSettled,
        TransactionsSettledReply,
    )


logger = logging.getLogger("raftmq.broker")


# -- Addresses ------------------------------------------------------------------------------------
# Addresses of the other brokers, from the metadata to the connections of `Peers`.
#
# Follows the metadata images and does nothing else.


async def follow_addresses(broker_id: int, quorum: MetadataQuorum, peers: Peers) -> NoReturn:
    """Until cancelled. The addresses of the image at hand are set before the first wait."""
    image = quorum.image
    peers.set_addresses(addresses_of_others(broker_id, image))
    while True:
        # Until the next metadata version; most versions change no broker, and then nothing is set.
        before, image = image, await quorum.wait_changed(image.version)
        if image.brokers is not before.brokers:  # only registrations change addresses
            peers.set_addresses(addresses_of_others(broker_id, image))


def addresses_of_others(broker_id: int, image: MetadataImage) -> dict[int, Address]:
    """Of every other broker whose registration has an endpoint for brokers."""
    return {
        broker.broker_id: Address(endpoint.host, endpoint.port)
        for broker in image.brokers.values()
        for endpoint in broker.endpoints
        if endpoint.listener == BROKERS and broker.broker_id != broker_id
    }


# -- Requests -------------------------------------------------------------------------------------
# Which family of handlers serves which request, and the one place that authorises.
#
# Owns the table only. There are no rights yet: the listener alone refuses, which the server checks.


class Family(Protocol):
    def handlers(self) -> Handlers: ...


def table_of(families: Iterable[Family]) -> Handlers:
    table: dict[type[Request], Handler] = {}
    for family in families:
        for kind, handler in family.handlers().items():
            assert kind not in table, f"{kind.__name__} is answered twice"
            table[kind] = handler
    return table


def authorize(context: RequestContext, request: Request) -> None:
    """Called for every request before its handler; raises to refuse it."""


# -- Broker ---------------------------------------------------------------------------------------


# How long a report of damage waits for metadata that is up to date; it is tried again after that.
CATCH_UP_MS = 5000


SETTLED_ANSWER_SECONDS = 5.0  # it takes no disk; a silent broker is asked again with pauses


class NodeEnvironment:
    """What a node runs on; simulations pass their own.

    Attributes:
        run_sync: runs blocking disk calls; None: in threads.
        descriptors_max: file descriptors that the process may have.
        now_ms: the wall clock, for timestamps and deletion by age.
        timing: of the quorum.
    """

    def __init__(
        self,
        network: Network,
        *,
        files: Files | None = None,
        random: Random | None = None,
        run_sync: RunSync | None = None,
        now_ms: Callable[[], int] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.network, self.files = network, files or OsFiles()
        # Simulated files take no descriptors.
        self.descriptors_max = allow_many_files() if files is None else sys.maxsize
        self.random = random or SystemRandom()
        self.run_sync, self.now_ms = run_sync, now_ms or wall_clock_ms
        self.timing = timing or Timing()

    def rpc_arguments(self) -> dict[str, Any]:
        return {} if self.run_sync is None else {"run_sync": self.run_sync}


class Broker:
    """A running node. Made by `open_broker`."""

    def __init__(
        self,
        settings: BrokerSettings,
        host: NodeEnvironment,
        quorum: MetadataQuorum,
        directory: LogDirectory,
        clock: BrokerClock,
        meta: MetaFile,
        high_watermarks: HighWatermarks,
    ) -> None:
        self.settings, self.quorum, self._host, self._meta = settings, quorum, host, meta
        self._directory, self.clock = directory, clock
        self._epoch = BrokerEpoch()
        node_id = settings.node_id
        self.office = ControllerLeadership(
            node_id,
            quorum,
            host.network,
            voters=settings.voters.keys(),
            clock_difference_ms_max=settings.clock_difference_ms_max,
        )
        # A process that dies resets its connections: the controller probes whether it did.
        on_left = self.office.on_connection_reset
        connector = TrioConnector(host.network, self._hello)
        self._peers = Peers(connector, random=host.random, on_left=on_left)
        self._copy_peers = Peers(connector, random=host.random)
        self._link = ControllerLink(
            node_id, quorum, self._peers, beat_here=self.office.on_heartbeat
        )
        command_numbers = count(1)  # shared: command ids of one broker must all differ
        self._proposals = IsrProposals(
            node_id,
            self._link,
            broker_epoch=self._epoch.get,
            random=host.random,
            sequences=command_numbers,
        )
        self._fetchers = self._make_fetchers()
        self._changes = MetadataChanges(quorum, self._link)
        self._damage_reports = DamageReports(
            node_id,
            self._link,
            broker_epoch=self._epoch.get,
            catch_up=partial(self._changes.catch_up, timeout_ms=CATCH_UP_MS),
        )
        self._coordinator = self._make_coordinator(command_numbers)
        self._expiry = OffsetExpiry(self._coordinator, self.clock.confirmed_ms)
        self._producer_ids = ProducerIdAllocation(node_id, self._link, broker_epoch=self._epoch.get)
        self._transactions = self._make_transactions()
        self.replicas = self._make_replicas(high_watermarks)
        self._led_transactions = LedTransactions(
            self.replicas,
            quorum,
            catch_up=partial(self._changes.catch_up, timeout_ms=CATCH_UP_MS),
            ask_end=self._ask_end,
        )
        limits = self._limits()
        self.lifetime = self._make_lifetime(logs_max=self._logs_max(limits))
        self._waiting_fetches = FetchPurgatory()
        self._server = RpcServer(
            ServerIdentity(settings.cluster_id, node_id),
            table_of(self._families()),
            authorize=authorize,
            limits=limits,
            metadata_version=lambda: quorum.image.version,
            on_batch=self._waiting_fetches.on_batch,
            on_left=on_left,
            **host.rpc_arguments(),
        )

    def _make_fetchers(self) -> Fetchers:
        return Fetchers(
            self.settings.node_id,
            self._peers,
            broker_epoch=self._epoch.get,
            random=self._host.random,
            copy_peers=self._copy_peers,
            copy_budget=CopyBudget(self.settings.reassignment_bytes_per_second),
        )

    def _make_replicas(self, high_watermarks: HighWatermarks) -> Replicas:
        return Replicas(
            self.settings.node_id,
            self.quorum,
            self._directory,
            high_watermarks,
            broker_epoch=self._epoch.get,
            following=self._fetchers,
            proposing=self._proposals,
            reports=self._damage_reports,
            peers=self._peers,
            random=self._host.random,
            voters=self.settings.voters,
        )

    def _make_coordinator(self, sequences: Iterator[int]) -> GroupCoordinator:
        return GroupCoordinator(
            self.settings.node_id,
            self.quorum,
            self._link,
            self._changes,
            self.settings.groups,
            broker_epoch=self._epoch.get,
            sequences=sequences,
            now_ms=self.clock.stamp_ms,
        )

    def _make_transactions(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self._coordinator,
            self.quorum,
            ask_settled=self._ask_settled,
            without_id=self._producer_ids.init,
            timeout_ms_max=self.settings.transaction_timeout_ms_max,
            voters=self.settings.voters,
            confirmed_ms=self.clock.confirmed_ms,
        )

    def _limits(self) -> RpcLimits:
        """As configured, but never so many connections that logs lack file descriptors."""
        limits, descriptors = self.settings.limits, self._host.descriptors_max
        logs = len(self._directory.found())
        wanted = limits.connections_max
        found = connections_within(descriptors, wanted=wanted, logs=logs)
        # An operator who asked for more has to see that it is fewer.
        is_asked_for = wanted != RpcLimits().connections_max
        level = logging.WARNING if found < wanted and is_asked_for else logging.INFO
        what = "connections: max=%d wanted=%d descriptors=%d logs=%d"
        logger.log(level, what, found, wanted, descriptors, logs)
        return replace(limits, connections_max=found)

    def _logs_max(self, limits: RpcLimits) -> int:
        descriptors = self._host.descriptors_max
        if descriptors == sys.maxsize:  # unlimited, or simulated
            return 0
        return logs_within(descriptors, connections=limits.connections_max)

    def _make_lifetime(self, *, logs_max: int) -> Lifetime:
        settings = self.settings
        endpoints = tuple(
            Endpoint(one.name, one.advertised.host, one.advertised.port)
            for one in settings.listeners
        )
        boot_id = self._host.files.boot_id()
        return Lifetime(
            BrokerProfile(settings.node_id, endpoints, boot_id, settings.rack, logs_max),
            self._meta,
            self.quorum,
            self._link,
            LifetimeEnvironment(
                self.replicas.damaged,
                self._directory.oldest_pending_age,
                self._on_epoch,
                self.clock,
            ),
            epoch=self._epoch,
            random=self._host.random,
        )

    def _families(self) -> Iterator[Family]:
        replicas, directory, quorum = self.replicas, self._directory, self.quorum
        changes = self._changes
        yield ProduceRequests(replicas)
        yield ProducerFencing(replicas, lambda: quorum.image.feature_level)
        yield FetchRequests(replicas, directory, self._waiting_fetches, self._host.random)
        yield ReplicaFetchRequests(
            replicas,
            directory,
            self._waiting_fetches,
            self._host.random,
            registered_epoch=self._registered_epoch,
        )
        yield ListOffsetsRequests(replicas, directory)
        yield RecordDeletion(
            self.settings.node_id,
            replicas,
            directory,
            changes,
            broker_epoch=self._epoch.get,
            voters=self.settings.voters,
        )
        yield ScheduledRequests(replicas, directory, voters=self.settings.voters)
        yield LogDescriptions(replicas)
        yield self._led_transactions
        yield OverdueRequests(
            replicas,
            self._transactions.settling.overdue,
            timeout_ms_max=self.settings.transaction_timeout_ms_max,
        )
        yield self.replicas.rot_watch
        yield MetadataRequests(
            quorum,
            cluster_id=self.settings.cluster_id,
            voters=self.settings.voters,
            wrong_clocks=lambda: self.clock.wrong,
            own_epoch=self._epoch.get,
        )
        yield TopicDescriptions(quorum)
        yield TopicRequests(changes, self._host.random, voters=self.settings.voters)
        yield TopicConfigRequests(changes)
        yield ElectionRequests(changes, self._host.random)
        yield MoveRequests(changes, voters=self.settings.voters)
        yield self._transactions
        yield MemberRequests(self._coordinator, self._host.random, voters=self.settings.voters)
        yield OffsetRequests(self._coordinator)
        yield GroupRequests(self._coordinator)
        yield ControllerRequests(quorum, self.office)

    async def _ask_settled(
        self, broker_id: int, request: TransactionsSettled
    ) -> TransactionsSettledReply:
        """The leader of its partitions, which may be this broker."""
        if broker_id == self.settings.node_id:
            return self._led_transactions.requests.tell_settled(request)
        answer = await self._peers.request(
            broker_id, request, timeout_seconds=SETTLED_ANSWER_SECONDS
        )
        reply: TransactionsSettledReply = answer.body
        return reply

    async def _ask_end(self, broker_id: int, request: EndTxn) -> EndTxnReply:
        """The coordinator of its id, which may be this broker."""
        if broker_id == self.settings.node_id:
            return await self._transactions.requests.end_here(request)  # once it is decided
        seconds = request.timeout_ms / 1000
        reply: EndTxnReply = (
            await self._peers.request(broker_id, request, timeout_seconds=seconds)
        ).body
        return reply

    def _hello(self) -> Hello:
        return Hello(self.settings.cluster_id, self.settings.node_id, software=SOFTWARE)

    def _registered_epoch(self, broker_id: int) -> int | None:
        broker = self.quorum.image.brokers.get(broker_id)
        # A broker that was never registered may still connect: its fetches are refused.
        return None if broker is None else broker.broker_epoch

    def _on_epoch(self, _broker_epoch: int) -> None:
        self._coordinator.follow()
        self._producer_ids.on_epoch()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; started once it listens.

        Peers and delayed fetches run before the listeners: the first request needs both. The
        registration (`lifetime`) makes this broker known only once it listens.
        """
        async with trio.open_nursery() as nursery:
            for peers in (self._peers, self._copy_peers):
                await nursery.start(peers.run)  # ready to dial before any task sends a request
                nursery.start_soon(follow_addresses, self.settings.node_id, self.quorum, peers)
            # Handlers need it from the first fetch on.
            await nursery.start(self._waiting_fetches.run)
            for listener in self.settings.listeners:
                # Bound before the next one, so that a port in use stops the start.
                await nursery.start(self._listen, listener)
            for task in (
                self.office.run,
                ClusterEventLog(
                    self.settings.node_id, self.quorum, lambda: self.office.is_held
                ).run,
                self._fetchers.run,
                self._proposals.run,
                self._producer_ids.run,
                self._coordinator.run,
                self._expiry.run,
                self._transactions.run,
                self._damage_reports.run,
                self.replicas.repair.run,
                self.replicas.rot_watch.run,
                self.replicas.scheduled.run,
                self.replicas.run,
                self.replicas.run_ticks,
                self.replicas.run_checkpoints,
                self._led_transactions.run,
                self.lifetime.run,
                partial(self._directory.run_retention, self.clock.confirmed_ms),
            ):
                nursery.start_soon(task)
            task_status.started()

    async def _listen(
        self,
        listener: ListenerSettings,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        told = self.settings.listener(listener)  # name and purpose, for error texts

        async def serve(stream: trio.abc.Stream) -> None:
            await self._server.serve_stream(stream, told)  # until either side hangs up

        await self._host.network.serve(serve, listener.bind, task_status=task_status)

    async def stop(self) -> bool:
        """Move leaderships and slots to other brokers; returns whether the controller let this
        broker go in time. Leave the body of `open_broker` afterwards.
        """
        return await self.lifetime.stop()

    async def flush(self) -> None:
        """Make everything that was appended durable, and say so to the next start."""
        await self.replicas.checkpoint()
        # Records in the page cache alone reach the disk; slow disks take long.
        await self._directory.flusher.flush_now(self._directory.logs.values())
        # An offline log is not durable; without the mark the next start looks for the damage.
        if all(
            log.durable_end_offset == log.log_end_offset and not log.offline_reason
            for log in self._directory.logs.values()
        ):
            # Written and synced: the last thing before the directory is unlocked.
            await self._meta.mark_clean()


@asynccontextmanager
async def open_broker(settings: BrokerSettings, host: NodeEnvironment) -> AsyncIterator[Broker]:
    """Run a node for as long as the body runs; it listens when the body begins.

    Raises:
        DirectoryInUse: another process has locked the directory.
        InvalidConfig: impossible settings, or a directory of another node.
        CorruptJournal, StorageError: the disk failed; if it does so later, the body is cancelled.
    """
    async with AsyncExitStack() as stack:
        clock = BrokerClock(settings.node_id, host.now_ms)
        run_sync = host.run_sync or run_in_thread
        # Locks the directory first: nothing may be read that another process is writing.
        directory = await stack.enter_async_context(
            open_log_directory(
                settings.directory,
                files=host.files,
                run_sync=host.run_sync,
                now_ms=clock.stamp_ms,  # corrected where this clock is wrong (0026)
            )
        )
        owner = (settings.cluster_id, settings.node_id)
        meta = await open_meta(  # under the lock; a directory of another node stops the start
            host.files, settings.directory, owner, random=host.random, run_sync=run_sync
        )
        high_watermarks = HighWatermarks(host.files, settings.directory, run_sync)
        await high_watermarks.load()  # before replicas are made, which begin with them
        # Before logs are opened: a deletion that a crash interrupted would look like a replica.
        await directory.remove_deleted()
        # A voter replays its journal, an observer fetches a snapshot.
        quorum = await stack.enter_async_context(_open_metadata(settings, host))
        broker = Broker(settings, host, quorum, directory, clock, meta, high_watermarks)
        # Older metadata would not know all topics of the logs, nor could their damage be reported.
        await wait_known(quorum, meta.meta.broker_epoch)
        found = directory.found()
        # Drop the high watermarks of partitions whose folders are gone.
        high_watermarks.keep(map("/".join, found))
        # Recovery scans after a crash; the registration has to know damage.
        await broker.replicas.open_found(found)
        async with open_background() as nursery:
            await nursery.start(broker.run)  # returns when the broker listens
            yield broker
        # Also where the body was cancelled: without it the next start would scan every log.
        with trio.CancelScope(shield=True):
            await broker.flush()


@asynccontextmanager
async def _open_metadata(
    settings: BrokerSettings, host: NodeEnvironment
) -> AsyncIterator[MetadataQuorum]:
    quorum_settings = QuorumSettings(
        settings.directory / "quorum",
        settings.cluster_id,
        settings.node_id,
        settings.voters,
        timing=host.timing,
        is_replacement=settings.is_replacement,
    )
    arguments: dict[str, Any] = {"files": host.files, "random": host.random}
    if host.run_sync is not None:  # simulations only: the quorum has threads of its own otherwise
        arguments["run_sync"] = host.run_sync
    opening = open_quorum if settings.is_voter else open_observer
    async with opening(quorum_settings, host.network, **arguments) as quorum:
        yield quorum
