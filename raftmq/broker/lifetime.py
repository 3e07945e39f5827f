"""Registration of this broker: broker epoch, heartbeats, fencing, and controlled shutdown.

Owns the broker epoch and the heartbeats. A process registers under an incarnation of its own,
again and again until it knows that it succeeded, and anew when the controller has forgotten it.
While it is stopping it does not register again. (Kafka: BrokerLifecycleManager)

Invariants: an epoch is on disk before it is used, here or in a request; a heartbeat is sent only
under an epoch that holds, as far as this broker knows.
"""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import trio

from raftmq.errors import (
    BrokerIdNotRegistered,
    ErrorCode,
    RaftmqError,
    StaleBrokerEpoch,
    error_for,
)
from raftmq.metadata.apply.brokers import DAMAGED_MAX
from raftmq.metadata.clocks import ClockOffset, ClockVerdict
from raftmq.metadata.commands import (
    NO_EPOCH,
    SUPPORTED_LEVEL,
    BrokerRegistered,
    Refused,
    RegisterBroker,
)
from raftmq.metadata.liveness import HEARTBEAT_SECONDS, BrokerContact
from raftmq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from raftmq.broker.broker_clock import BrokerClock
    from raftmq.broker.controller_link import ControllerLink
    from raftmq.broker.meta import MetaFile
    from raftmq.metadata.commands import AnyResult, Endpoint
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

REGISTER_PAUSE_SECONDS = 1.0  # between refused attempts, unless the metadata changes before
BEAT_AGAIN_SECONDS = 0.25  # after a heartbeat without an answer, and while this broker stops
STOP_SECONDS_MAX = 10.0  # to move leaderships away; then it stops all the same
UNHEARD_SECONDS_MAX = 3.0  # without a controller the stop goes on: long enough for an election
KNOWN_SECONDS = 1.0  # a start that waits longer for the metadata logs why
# Refusals that pass: another process of this broker was registered meanwhile, or one with another
# disk is registered and not known to be gone.
_WAITED_FOR = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.DUPLICATE_BROKER_REGISTRATION)

logger = logging.getLogger("raftmq.broker")


class BrokerProfile(NamedTuple):
    """What a broker says of itself in a registration; fixed while the process runs.

    Attributes:
        boot_id: of the machine; see `Files.boot_id`. Another one means that the page cache is lost.
        logs_max: how many partitions it has file descriptors for; 0: any number.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    boot_id: str
    rack: str | None = None
    logs_max: int = 0


class LifetimeEnvironment(NamedTuple):
    """What `Lifetime` needs of the rest of the broker. None of it may block.

    Attributes:
        damaged: partitions whose logs lost durable records, found when they were opened.
        pending_flush_seconds: age of the oldest flush that has not returned: a hanging disk.
        on_epoch: called after each change of the epoch: with the new one, or with -1.
        clock: gets the controller's verdict on it.
    """

    damaged: Callable[[], Sequence[tuple[bytes, int]]]
    pending_flush_seconds: Callable[[], float]
    on_epoch: Callable[[int], None]
    clock: BrokerClock


class BrokerEpoch:
    """The epoch under which this process is registered: `Lifetime` sets it, and every part that
    speaks for this broker reads it.

    Attributes:
        value: -1 while it is not registered.
    """

    def __init__(self) -> None:
        self.value = NO_EPOCH

    def get(self) -> int:
        return self.value


class Lifetime:
    """`run` registers this broker and sends its heartbeats."""

    def __init__(
        self,
        profile: BrokerProfile,
        file: MetaFile,
        quorum: MetadataQuorum,
        link: ControllerLink,
        around: LifetimeEnvironment,
        *,
        epoch: BrokerEpoch,
        random: Random,
    ) -> None:
        self._profile, self._file = profile, file
        self._quorum, self._link, self._around = quorum, link, around
        self._epoch, self._random = epoch, random
        self._is_heard = self._was_registered = False
        self._heard_at = -inf
        self._stop_wanted, self._may_stop, self._over = trio.Event(), False, trio.Event()

    @property
    def broker_epoch(self) -> int:
        return self._epoch.value

    async def run(self) -> NoReturn:
        """Register and send heartbeats until `stop` or cancelled.

        Raises:
            StorageError: the epoch cannot be written.
            RaftmqError: the cluster refuses this broker as it is; another attempt cannot help.
        """
        while not self._stop_wanted.is_set():
            await self._register()  # until registered; a stop meanwhile is seen by `_beat_on`
            # Until the registration is lost or the controller lets this broker go.
            await self._beat_on()
        self._over.set()
        # `stop` still reads the state; the owner of this task cancels it.
        await trio.sleep_forever()
        raise AssertionError("woken")

    async def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> bool:
        """Have leaderships and slots moved to other brokers.

        `run` must go on meanwhile. Returns whether the controller has let this broker go; False
        if it does not know this broker, does not answer, or time was up.
        """
        self._stop_wanted.set()
        # Never registered: it leads nothing, and no controller could let it go.
        if self.broker_epoch != NO_EPOCH:
            with trio.move_on_after(seconds_max):
                await self._wait_over()  # `run` sends the heartbeats that end this
        logger.info("shutdown: broker=%d in_order=%s", self._profile.broker_id, self._may_stop)
        return self._may_stop

    async def _wait_over(self) -> None:
        """Until the controller lets it go, or does not answer any more. One that answers may take
        its time: moving partitions needs several commands.
        """
        begin = trio.current_time()
        while not self._over.is_set():
            give_up_at = max(begin, self._heard_at) + UNHEARD_SECONDS_MAX
            # No controller has answered for so long, so none can let it go.
            if trio.current_time() >= give_up_at:
                unheard = UNHEARD_SECONDS_MAX
                logger.warning(
                    "no controller answers, stopping without it: %s unheard_seconds=%g",
                    self._name,
                    unheard,
                )
                return
            # Every answer moves the limit, so it is computed anew after each wait.
            with trio.move_on_at(give_up_at):
                await self._over.wait()  # set by `run` when the controller lets this broker go

    # Registration

    async def _register(self) -> None:
        """Until the registration is committed and its epoch on disk.

        All attempts carry one incarnation, so an earlier one that was applied is recognised.
        """
        incarnation = self._random.randbytes(16)
        damaged = self._first_damage()
        reason = ""
        while True:
            expected = self._known_epoch(self._quorum.image)
            registration = self._registration(incarnation, damaged, expected)
            # One attempt, with the wait for a leader.
            result, problem = await self._try_register(registration)
            if isinstance(result, BrokerRegistered):  # committed, by this attempt or an earlier one
                # Its epoch must be on disk before anything uses it.
                await self._take(result.broker_epoch)
                return
            # The same reason is logged once.
            if problem != reason:
                reason = problem
                logger.warning("not registered yet: %s reason=%s", self._name, reason)
            # The refusal may be over when the metadata changes.
            await self._wait_other_than(expected)

    def _known_epoch(self, image: MetadataImage) -> int:
        """The epoch under which the metadata knows this broker; NO_EPOCH if it does not."""
        known = image.brokers.get(self._profile.broker_id)
        return NO_EPOCH if known is None else known.broker_epoch

    async def _wait_other_than(self, expected: int) -> None:
        """Until the metadata shows another registration of this broker, or for a pause."""
        # The pause also covers lost answers, after which nothing changes in the metadata.
        with trio.move_on_after(REGISTER_PAUSE_SECONDS):
            image = self._quorum.image
            while self._known_epoch(image) == expected:  # still the process that was in the way
                # Another registration, or the end of the pause.
                image = await self._quorum.wait_changed(image.version)

    def _first_damage(self) -> tuple[tuple[bytes, int], ...]:
        """Partitions that lost records before this process; only with its first registration, as
        replicas may be repaired by then.

        One more than a registration may list makes the controller trust none of them.
        """
        if self._was_registered:
            return ()
        return tuple(self._around.damaged()[: DAMAGED_MAX + 1])

    def _registration(
        self, incarnation: bytes, damaged: tuple[tuple[bytes, int], ...], expected: int
    ) -> RegisterBroker:
        profile, meta = self._profile, self._file.meta
        return RegisterBroker(
            broker_id=profile.broker_id,
            incarnation=incarnation,
            directory_id=meta.directory_id.bytes,
            endpoints=profile.endpoints,
            rack=profile.rack,
            feature_level_max=SUPPORTED_LEVEL,
            software_version=__version__,
            logs_max=profile.logs_max,
            previous_broker_epoch=meta.broker_epoch,
            boot_id=profile.boot_id,
            clean_shutdown_epoch=meta.clean_shutdown_epoch,
            damaged=damaged,
            expected_broker_epoch=expected,
        )

    async def _try_register(self, command: RegisterBroker) -> tuple[AnyResult | None, str]:
        """The result, if there is one, and a reason if it is not a registration.

        Raises errors that another attempt cannot change.
        """
        try:
            # May take an election; command and incarnation stay the same.
            result = await self._link.propose(command)
        except RaftmqError as error:
            # No controller, or it is unknown whether the command was applied: ask again.
            if not error.retriable:
                raise
            return None, str(error)
        if not isinstance(result, Refused):  # BrokerRegistered: committed
            return result, ""
        # Such as a feature level that this version does not know: an operator has to act.
        if result.code not in _WAITED_FOR:
            raise error_for(result.code, result.message)
        return result, result.message

    async def _take(self, broker_epoch: int) -> None:
        # On disk before use: after a crash the next process proves with it that it has this disk.
        await self._file.write_epoch(broker_epoch)
        self._was_registered = True
        self._set_epoch(broker_epoch)
        logger.info("registered: %s", self._name)

    def _set_epoch(self, broker_epoch: int) -> None:
        self._epoch.value = broker_epoch
        self._around.on_epoch(broker_epoch)

    # Heartbeats

    async def _beat_on(self) -> None:
        """Heartbeats as long as the epoch holds and the controller has not let this broker go."""
        await self._wait_own_image()
        self._is_heard = True
        while not self._may_stop:
            sent_at = trio.current_time()
            try:
                await self._beat()  # one answer of the controller, or none within its timeout
            # Another process took the id, or the controller forgot this one: register anew.
            except (StaleBrokerEpoch, BrokerIdNotRegistered) as error:
                logger.warning("registration lost: %s reason=%s", self._name, error)
                self._set_epoch(NO_EPOCH)
                return
            await self._rest(sent_at)  # until the next heartbeat is due, or a stop

    async def _wait_own_image(self) -> None:
        """The first heartbeat should count: the controller unfences no broker whose metadata is
        older than its registration.
        """
        # Heartbeats must begin in time even where the image is late.
        with trio.move_on_after(HEARTBEAT_SECONDS):
            # The image with this very registration.
            await self._quorum.wait_changed(self.broker_epoch - 1)

    async def _beat(self) -> None:
        # The clock is read before sending, so that a slow answer makes it look behind, never ahead.
        is_stopping, reading = self._stop_wanted.is_set(), self._around.clock.read()
        said = BrokerContact(
            self._profile.broker_id,
            self.broker_epoch,
            self._quorum.image.version,
            self._around.pending_flush_seconds(),
            is_stopping,
            reading.wall_ms,
        )
        try:
            reply = await self._link.heartbeat(said)  # an answer, or an error within its timeout
        # Only these two end the epoch; any other error is a heartbeat without an answer.
        except (StaleBrokerEpoch, BrokerIdNotRegistered):
            raise
        except RaftmqError as error:  # no answer: tried again, under the same epoch
            self._note_heard(str(error))
            return
        self._note_heard("")
        self._heard_at = trio.current_time()
        wrong = tuple(ClockOffset(it.broker_id, it.ahead_ms) for it in reply.wrong_clocks)
        verdict = ClockVerdict(reply.is_clock_confirmed, wrong, reply.clock_ahead_ms)
        self._around.clock.on_answer(reading, verdict)
        # An answer from before `stop` does not count.
        self._may_stop = is_stopping and reply.may_shut_down

    def _note_heard(self, problem: str) -> None:
        """Log a change, not every heartbeat."""
        is_heard, self._is_heard = self._is_heard, not problem
        if is_heard and problem:  # the first failure of a row
            # A cluster that starts has no controller yet: nothing to warn of.
            level = logging.INFO if self._heard_at == -inf else logging.WARNING
            logger.log(level, "heartbeat not heard: %s reason=%s", self._name, problem)
        elif not is_heard and not problem:  # the first success after a failure
            logger.info("heartbeat heard again: %s", self._name)

    async def _rest(self, sent_at: float) -> None:
        if self._may_stop:  # no need for another heartbeat
            return
        # Unheard or stopping: sooner, to be heard before the session expires and to stop fast.
        if self._stop_wanted.is_set() or not self._is_heard:
            await trio.sleep_until(sent_at + BEAT_AGAIN_SECONDS)  # soon, but never twice at once
            return
        # A stop must not wait for the next regular heartbeat.
        with trio.move_on_at(sent_at + HEARTBEAT_SECONDS):
            await self._stop_wanted.wait()  # set by `stop`

    @property
    def _name(self) -> str:
        return f"broker={self._profile.broker_id} epoch={self.broker_epoch}"


async def wait_known(quorum: MetadataQuorum, broker_epoch: int) -> None:
    """Until the metadata is as new as this broker's last registration: its topics are known then,
    and records that its logs lost can be reported with the next registration."""
    seen = broker_epoch - 1
    # The usual case: the metadata is read from the own disk or a live quorum within a second.
    with trio.move_on_after(KNOWN_SECONDS):
        await quorum.wait_changed(seen)
        return
    logger.warning(
        "not started yet, the metadata is too old: version=%d needed=%d quorum_leader=%s",
        quorum.image.version,
        broker_epoch,
        quorum.leadership.leader_id,
    )
    # Lasts as long as there is no quorum: damage in logs of newer topics could not be reported.
    image = await quorum.wait_changed(seen)
    logger.info("the metadata is new enough: version=%d needed=%d", image.version, broker_epoch)
