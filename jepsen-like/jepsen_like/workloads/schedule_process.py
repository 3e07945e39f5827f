"""A client that schedules records and cancels some of them, one thing after the other.

Owns what an outcome is: of a send as everywhere (`sending.py`); of a cancel, that the record will
certainly not be delivered, that this has certainly changed nothing, or that nothing is known. After
an unknown outcome the process has another number and another producer; what it may cancel goes on.
"""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import trio

from jepsen_like.history.event import ACKS_ALL, Type
from jepsen_like.workloads.bench import Pace, wait_stop
from jepsen_like.workloads.keys import encode_value, split_key
from jepsen_like.workloads.schedule_plan import VALUES_MAX, Known, draw_delay
from jepsen_like.workloads.sending import HUNG_SECONDS, error_text, outcome_of
from jepsen_like.workloads.worker import CLOSE_SECONDS_MAX, PAUSE_SECONDS
from raftmq.errors import CannotCancel, OutcomeUnknown, RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Bench, Stop
    from jepsen_like.workloads.schedule_plan import Dues
    from raftmq.client.client import Client
    from raftmq.client.producer.batch import RecordMetadata
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.producer import Producer
    from raftmq.client.scheduling.handles import ScheduleHandle

CANCEL_CHANCE = 1 / 6  # of an operation
CANCEL_SECONDS_MAX = 6.0  # for all attempts of one

logger = logging.getLogger(__name__)


class _Sent(NamedTuple):
    key: str
    value: int
    handle: ScheduleHandle


async def run_scheduler(bench: Bench, stop: Stop, name: str, dues: Dues, *, rate: float) -> None:
    """Until `stop` is set; then the operation in flight is finished.

    Args:
        rate: operations a second.
    """
    random = Random(bench.random.getrandbits(64))
    known: Known[_Sent] = Known(Random(random.getrandbits(64)))
    pace = Pace(random, 1 / rate)
    while not stop.is_set():
        try:
            async with bench.new_client(name) as client:
                while not stop.is_set():
                    await _Scheduler(bench, client, random, known, dues).run(stop, pace)
        except RaftmqError as error:
            logger.info("scheduler: name=%s reason=%s", name, error)
            await wait_stop(stop, PAUSE_SECONDS)


class _Scheduler:
    def __init__(
        self, bench: Bench, client: Client, random: Random, known: Known[_Sent], dues: Dues
    ) -> None:
        self._bench, self._client = bench, client
        self._random, self._known, self._dues = random, known, dues
        self._process = next(bench.numbers)

    async def run(self, stop: Stop, pace: Pace) -> None:
        """Until an outcome is unknown."""
        settings = self._bench.settings
        with trio.CancelScope() as scope:
            async with self._client.producer(
                acks="all",
                linger_ms=0,
                request_timeout_ms=settings.request_timeout_ms,
                delivery_timeout_ms=settings.delivery_timeout_ms,
            ) as producer:
                kind = Type.OK
                while not stop.is_set() and kind is not Type.INFO:
                    await pace.wait()
                    kind = await self._operate(producer)
                scope.deadline = trio.current_time() + CLOSE_SECONDS_MAX

    async def _operate(self, producer: Producer) -> Type:
        now, sent = self._bench.recorder.seconds, None
        if self._random.random() < CANCEL_CHANCE:
            sent = self._known.take(now=now)
        return await (self._send(producer) if sent is None else self._cancel(sent))

    # -- sends -----------------------------------------------------------------------------

    async def _send(self, producer: Producer) -> Type:
        bench, recorder = self._bench, self._bench.recorder
        key = self._random.choice(bench.keys.active)
        values = bench.keys.take_steadily(key, self._random.randint(1, VALUES_MAX))
        delay = draw_delay(self._random)
        due = recorder.seconds + delay
        self._dues.on_sent(delay, due)
        asked = {"key": key, "acks": ACKS_ALL, "values": values, "is_idempotent": True, "due": due}
        recorder.invoke(self._process, "send", asked)
        results = await self._results(producer, key, values, delay)
        outcome = outcome_of(
            [result if isinstance(result, RaftmqError) else result.offset for result in results]
        )
        told = {**asked, "offsets": outcome.offsets, "is_repeated": False}
        if outcome.type is Type.INFO and outcome.failed:
            told["failed"] = [values[place] for place in outcome.failed]
        recorder.record(self._process, outcome.type, "send", told, error=outcome.error)
        for value, result in zip(values, results, strict=True):
            handle = None if isinstance(result, RaftmqError) else result.schedule_handle
            if handle is not None:
                self._known.on_acknowledged(due, _Sent(key, value, handle))
        return outcome.type

    async def _results(
        self, producer: Producer, key: str, values: tuple[int, ...], delay: float
    ) -> list[RecordMetadata | RaftmqError]:
        """One for each value. An outcome that is later than promised is unknown, too."""
        results: list[RecordMetadata | RaftmqError] = []
        seconds = self._bench.settings.delivery_timeout_ms / 1000 + HUNG_SECONDS
        topic, partition = split_key(key)
        with trio.move_on_after(seconds):
            deliveries: list[Delivery | RaftmqError] = []
            for value in values:
                data = encode_value(value, padding_bytes=self._bench.settings.padding_bytes)
                try:
                    given = producer.enqueue(topic, data, partition=partition, delay=delay)
                    deliveries.append(await given)
                except RaftmqError as error:
                    deliveries.append(error)
            for delivery in deliveries:
                results.append(await _result_of(delivery))  # noqa: PERF401  # kept at the deadline
        late = OutcomeUnknown(f"hung: no word within {seconds:g} s")
        return results + [late] * (len(values) - len(results))

    # -- cancels ---------------------------------------------------------------------------

    async def _cancel(self, sent: _Sent) -> Type:
        recorder = self._bench.recorder
        asked = {"key": sent.key, "value": sent.value, "offset": sent.handle.offset}
        recorder.invoke(self._process, "cancel", asked)
        kind, why, error = await self._outcome_of_cancel(sent.handle)
        told = {**asked, "why": why} if why else asked
        recorder.record(self._process, kind, "cancel", told, error=error)
        return kind

    async def _outcome_of_cancel(self, handle: ScheduleHandle) -> tuple[Type, str, str | None]:
        """With the reason of a refusal, which is an answer, and the error of what was none."""
        try:
            with trio.fail_after(CANCEL_SECONDS_MAX + HUNG_SECONDS):
                admin = self._client.admin.with_timeout(CANCEL_SECONDS_MAX)
                await admin.cancel_scheduled(handle)
        except CannotCancel as error:
            return Type.FAIL, error.reason, None
        except RaftmqError as error:
            return Type.FAIL if error.definite else Type.INFO, "", error_text(error)
        except trio.TooSlowError:
            seconds = CANCEL_SECONDS_MAX + HUNG_SECONDS
            return Type.INFO, "", f"hung: no word within {seconds:g} s"
        return Type.OK, "", None


async def _result_of(delivery: Delivery | RaftmqError) -> RecordMetadata | RaftmqError:
    if isinstance(delivery, RaftmqError):
        return delivery
    try:
        return await delivery
    except RaftmqError as error:
        return error
