"""The end of a retries run: when a group has done all, and what stands in its topics then.

Owns what "done" is: nothing is left in the topics that it reads, nothing in its topic of retries,
nothing waits there or is held up by an open transaction, and between two looks nothing was moved.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.keys import decode_value, key_of
from jepsen_like.workloads.retry_bench import RESULTS, read_result
from jepsen_like.workloads.retry_plan import Way, record_fate
from jepsen_like.workloads.sending import error_text
from raftmq.client.dead_letters.letters import dead_letter_topic, read_letter, retry_topic
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypeAlias

    from jepsen_like.workloads.bench import Bench
    from jepsen_like.workloads.retry_plan import RetryGroup
    from raftmq.client.client import Client
    from raftmq.client.consumer.record import ConsumerRecord

    Level: TypeAlias = Literal["read_committed", "read_uncommitted"]

LOOK_SECONDS = 1.0  # between looks at what is left
ANSWER_SECONDS_MAX = 5.0
LISTED_MAX = 1_000_000
READ_SECONDS_MAX = 60.0  # for all of one topic
UNREADABLE_KEY = ""  # of a letter or a result that does not say of which record it is

logger = logging.getLogger(__name__)


# -- What is left ---------------------------------------------------------------------------------


class _Left(NamedTuple):
    """Attributes:
    lags: by key, committed offset and end, where the group is behind; or up to where its topic of
        retries is not held up.
    pending: offsets in the topic of retries of what waits there.
    end: of that topic, with what waits.
    """

    lags: list[tuple[str, int | None, int | None]]
    pending: list[int]
    end: int

    @property
    def is_nothing(self) -> bool:
        return not self.lags and not self.pending


async def wait_done(bench: Bench, group: RetryGroup, *, deadline: float) -> None:
    """Until the group has done all, or the time is over; what was left then is told."""
    before: _Left | None = None
    async with bench.new_client(f"{group.name}/left") as client:
        while True:
            left = await _look(bench, client, group)
            is_done = left is not None and left.is_nothing and left == before
            if is_done or trio.current_time() >= deadline:
                break
            before = left
            await trio.sleep(LOOK_SECONDS)
    told = {"group": group.name}
    if left is None:
        bench.recorder.record(WATCH, Type.FAIL, "left", told)
    else:
        found = {"lags": left.lags, "pending": left.pending}
        bench.recorder.record(WATCH, Type.OK, "left", {**told, **found})


async def _look(bench: Bench, client: Client, group: RetryGroup) -> _Left | None:
    """None: nobody has answered."""
    admin, topic = client.admin.with_timeout(ANSWER_SECONDS_MAX), retry_topic(group.name)
    pending, ends, stable = list[int](), dict[int, int](), dict[int, int]()
    try:
        lags = await admin.group_lag(group.name)
        if await _is_there(client, topic):
            listed = await admin.scheduled(topic, limit=LISTED_MAX)
            pending = [one.handle.offset for one in listed.records]
            ends = await _ends(client, topic, "read_uncommitted")
            stable = await _ends(client, topic, "read_committed")
    except RaftmqError as error:
        logger.info("left: group=%s reason=%s", group.name, error)
        return None
    told = {key_of(one.topic, one.partition): one for one in lags}
    # What no member has subscribed to yet is not told.
    behind: list[tuple[str, int | None, int | None]] = [
        (key, None, None) for key in bench.keys.everything if key not in told
    ]
    behind += [(key, one.committed, one.end_offset) for key, one in told.items() if one.lag != 0]
    behind += [
        (key_of(topic, number), stable[number], end)
        for number, end in ends.items()
        if stable[number] < end
    ]
    return _Left(behind, pending, sum(ends.values()))


async def _ends(client: Client, topic: str, level: Level) -> dict[int, int]:
    """By partition. Raises RaftmqError."""
    admin = client.admin.with_timeout(ANSWER_SECONDS_MAX)
    found = await admin.offsets(topic, "latest", isolation_level=level)
    return {number: end or 0 for number, end in found.items()}


async def _is_there(client: Client, topic: str) -> bool:
    """Raises RaftmqError. A group that has moved nothing has no such topic."""
    admin = client.admin.with_timeout(ANSWER_SECONDS_MAX)
    return any(one.name == topic for one in await admin.list_topics([topic]))


# -- What stands there ----------------------------------------------------------------------------


async def tell_letters(bench: Bench, group: RetryGroup) -> None:
    """All dead letters of a group."""
    rows = await _read_whole(bench, dead_letter_topic(group.name), _letter_of)
    _tell(bench, "letters", group, rows)


async def tell_results(bench: Bench, group: RetryGroup) -> None:
    """All results of the group that is exactly once."""
    assert group.way is Way.EXACTLY_ONCE, "others have no results"
    _tell(bench, "results", group, await _read_whole(bench, RESULTS, _result_of))


def _tell(bench: Bench, f: str, group: RetryGroup, rows: list[Any] | RaftmqError) -> None:
    told = {"group": group.name}
    if isinstance(rows, RaftmqError):
        bench.recorder.record(WATCH, Type.FAIL, f, told, error=error_text(rows))
    else:
        bench.recorder.record(WATCH, Type.OK, f, {**told, "rows": rows})


def _letter_of(record: ConsumerRecord) -> list[Any]:
    letter, value = read_letter(record.headers), decode_value(record.value)
    origin = letter.origin
    key = UNREADABLE_KEY if origin is None else key_of(origin.topic, origin.partition)
    offset = -1 if origin is None else origin.offset
    fate = record_fate(key, value)
    return [record.offset, key, offset, value, fate, letter.attempts, letter.error]


def _result_of(record: ConsumerRecord) -> list[Any]:
    at = key_of(record.topic, record.partition), record.offset
    try:
        key, offset, value = msgspec.structs.astuple(read_result(record.value))
    except msgspec.MsgspecError:
        return [at, UNREADABLE_KEY, -1, -1, record_fate(UNREADABLE_KEY, -1)]
    return [at, key, offset, value, record_fate(key, value)]


async def _read_whole(
    bench: Bench, topic: str, row_of: Callable[[ConsumerRecord], list[Any]]
) -> list[Any] | RaftmqError:
    """Of committed transactions, from the beginning to the end; again after an error, while there
    is time.
    """
    deadline = trio.current_time() + READ_SECONDS_MAX
    while True:
        try:
            with trio.fail_at(deadline):
                async with bench.new_client(f"{topic}/whole") as client:
                    if not await _is_there(client, topic):
                        return []
                    return [row_of(record) for record in await _records(client, topic)]
        except RaftmqError as error:
            logger.info("whole: topic=%s reason=%s", topic, error)
            if trio.current_time() >= deadline:
                return error
            await trio.sleep(LOOK_SECONDS)
        except trio.TooSlowError:
            return RaftmqError(f"{topic} was not read to its end")


async def _records(client: Client, topic: str) -> Sequence[ConsumerRecord]:
    """What a crash has left open holds up the reader until its time is over."""
    found: list[ConsumerRecord] = []
    ends = await _ends(client, topic, "read_uncommitted")
    async with client.consumer(topic, start="earliest") as consumer:
        batches = consumer.batches()
        while any((consumer.position(topic, number) or 0) < end for number, end in ends.items()):
            with trio.move_on_after(LOOK_SECONDS):
                found += await anext(batches)
    return found
