"""The driver's questions to a cluster: whether topics exist, their partitions and offsets, retried.

Owns a connection, opened with the first question. Each question is retried during elections, up to
`retryTimeoutMs`. It can be pickled, without the connection: Spark sends readers to other processes.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from raftmq import sync
from raftmq.errors import RaftmqError, RequestTimedOut, UnknownTopicOrPartition, Unreachable
from spark_io.options.source import source_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from raftmq.client.administration.admin import When
    from raftmq.sync.admin import Admin
    from spark_io.offsets import Key
    from spark_io.options.sink import SinkOptions
    from spark_io.options.source import SourceOptions


logger = logging.getLogger("spark_io")


# -- Retries --------------------------------------------------------------------------------------
# Retries with back-off up to a deadline: the election of a leader must not end a query.


# Seconds of back-off between retries, doubled each time: the first one is shorter than an election,
# the last one spares a cluster that comes back with many tasks waiting.
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 2.0


def retried(
    call: Callable[[], T],
    seconds_max: float,
    *,
    option: str | None = "retryTimeoutMs",
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call until it succeeds, and return its result.

    Args:
        option: the option that sets `seconds_max`, for the error; None: there is none.

    Raises:
        RaftmqError: one that retries do not help; or the last one, when the time was over.
    """
    deadline, pause = now() + seconds_max, PAUSE_SECONDS
    while True:
        try:
            return call()
        except RaftmqError as error:
            if not is_passing(error):
                raise
            if now() + pause > deadline:
                by_option = f" ({option})" if option else ""
                error.add_note(f"tried for {seconds_max:g} s{by_option}")
                raise
        sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


def is_passing(error: RaftmqError) -> bool:
    """Whether a retry may help."""
    return error.retriable or isinstance(error, (Unreachable, RequestTimedOut))


# -- Lookup ---------------------------------------------------------------------------------------


T = TypeVar("T")

# A broker may learn of a new topic late: producers and consumers wait as long. Seconds until its
# answer is believed, and between two questions.
BEHIND_SECONDS, LOOK_SECONDS = 5.0, 0.25


class Lookup:
    """Asks a cluster by the admin client, and closes the connection at the end.

    Args:
        option: the option that sets how long to retry, for errors; None: there is none.
    """

    def __init__(self, options: SourceOptions, *, option: str | None = "retryTimeoutMs") -> None:
        self._options, self._option = options, option
        self._client: sync.Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A connection cannot be pickled: each process opens its own.
        return {**vars(self), "_client": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.__exit__(None, None, None)

    def keys(self, known: Iterable[Key] = ()) -> list[Key]:
        """The partitions that are read, as they are now.

        Args:
            known: partitions that were there before.

        Raises:
            UnknownTopicOrPartition: one that was named does not exist.
        """
        chosen = self._options
        named = chosen.assign or [(name, 0) for name in chosen.subscribe or ()]
        counts = self._counts({*named, *known})
        _check_there(counts, named)
        # Exactly those, also when the topic has grown.
        if chosen.assign is not None:
            return sorted(chosen.assign)
        names = chosen.subscribe or _matching(counts, chosen.pattern)
        return sorted((name, number) for name in names for number in range(counts[name]))

    def existing(self, keys: Iterable[Key]) -> list[Key]:
        """Those of them that exist."""
        keys = set(keys)
        counts = self._counts(keys)
        return sorted(key for key in keys if _is_there(counts, key))

    def earliest(self, keys: Iterable[Key]) -> dict[Key, int]:
        return self._found(self._ask_each(keys, lambda _: "earliest"))

    def latest(self, keys: Iterable[Key]) -> dict[Key, int]:
        """The ends as the isolation level sees them: tasks reach them without any more records."""
        return self._found(self._ask_each(keys, lambda _: "latest"))

    def since(self, moments: Mapping[Key, int]) -> dict[Key, int | None]:
        """The first offsets at or after these milliseconds since 1970; None: there is none."""
        return self._ask_each(moments, moments.__getitem__)

    # -- questions -------------------------------------------------------------------------

    def _counts(self, expected: Collection[Key]) -> dict[str, int]:
        """The number of partitions of each topic.

        Where an expected one is missing, the broker that answers may lag behind in metadata: its
        answer is believed after some seconds only.
        """
        # Only a pattern needs them all: a cluster may have thousands, and this is asked often.
        names = None if self._options.pattern is not None else {topic for topic, _ in expected}
        deadline = time.monotonic() + BEHIND_SECONDS
        while True:
            topics = self._retried(lambda admin: admin.list_topics(names))
            counts = {topic.name: topic.partition_count for topic in topics}
            if all(_is_there(counts, key) for key in expected) or time.monotonic() > deadline:
                return counts
            time.sleep(LOOK_SECONDS)

    def _ask_each(
        self, keys: Iterable[Key], moment: Callable[[Key], When]
    ) -> dict[Key, int | None]:
        """One request for each topic and moment, with all of its partitions."""
        groups: dict[tuple[str, When], list[int]] = defaultdict(list)
        for key in keys:
            groups[key[0], moment(key)].append(key[1])
        found: dict[Key, int | None] = {}
        for (topic, at), partitions in groups.items():
            offsets = self._offsets(topic, at, partitions)
            found |= {(topic, partition): offset for partition, offset in offsets.items()}
        return found

    def _offsets(self, topic: str, at: When, partitions: list[int]) -> dict[int, int | None]:
        level = self._options.isolation_level
        return self._retried(
            lambda admin: admin.offsets(topic, at, partitions=partitions, isolation_level=level)
        )

    @staticmethod
    def _found(offsets: Mapping[Key, int | None]) -> dict[Key, int]:
        return {key: offset for key, offset in offsets.items() if offset is not None}

    def _retried(self, question: Callable[[Admin], T]) -> T:
        # An outage is waited for longer than a wrong address takes to be reported.
        client = retried(self._connected, self._options.contact_seconds, option=self._option)
        seconds = self._options.retry_seconds
        return retried(
            lambda: question(client.admin.with_timeout(seconds)), seconds, option=self._option
        )

    def _connected(self) -> sync.Client:
        if self._client is None:
            client = sync.connect(list(self._options.bootstrap), client_id=self._options.client_id)
            client.__enter__()
            self._client = client
        return self._client


def _matching(counts: Iterable[str], pattern: str | None) -> list[str]:
    wanted = re.compile(pattern or "")
    # Two underscores begin the names of raftmq's own topics, as for patterns of consumers.
    return [name for name in counts if wanted.fullmatch(name) and not name.startswith("__")]


def _is_there(counts: Mapping[str, int], key: Key) -> bool:
    return key[1] < counts.get(key[0], 0)


def _check_there(counts: Mapping[str, int], keys: Iterable[Key]) -> None:
    for topic, partition in keys:
        if topic not in counts:
            raise UnknownTopicOrPartition(
                f"there is no topic {topic!r}: make it first, raftmq topic create {topic}, or name "
                "another one"
            )
        if partition >= counts[topic]:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has partitions 0 to {counts[topic] - 1}, and not {partition}"
            )


# -- The topic of a write -------------------------------------------------------------------------
# A write to a topic that does not exist, or by a wrong address, is refused while it is planned: no
# task begins.


# Seconds in which to find out, before a batch, and before each microbatch: shorter than tasks try.
BATCH_SECONDS, STREAM_SECONDS = 10.0, 5.0


def check_topic(options: SinkOptions, *, is_stream: bool) -> None:
    """Whether the option `topic` names a topic. Rows that name their own are not known yet.

    Args:
        is_stream: that no broker answers is left to the tasks, which go on for longer: a query
            must outlast what the microbatches before it have outlasted.

    Raises:
        UnknownTopicOrPartition: there is none.
        RaftmqError: no broker has answered.
    """
    if options.topic is None:
        return
    seconds = STREAM_SECONDS if is_stream else BATCH_SECONDS
    try:
        _look_for(options.bootstrap, options.topic, options.client_id, seconds)
    except UnknownTopicOrPartition:
        raise
    except RaftmqError as error:
        if not (is_stream and is_passing(error)):
            raise
        logger.warning("topic %s is looked for by the tasks: %s", options.topic, error)


# Each microbatch is planned anew, and twice; Spark uses its planning processes again.
@cache
def _look_for(bootstrap: tuple[str, ...], topic: str, client_id: str, seconds: float) -> None:
    count_partitions(bootstrap, topic, client_id, seconds)


def count_partitions(
    bootstrap: Sequence[str], topic: str, client_id: str, seconds: float = BATCH_SECONDS
) -> int:
    """The number of the topic's partitions.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
        RaftmqError: no broker has answered.
    """
    asked = {
        "bootstrap.servers": ",".join(bootstrap),
        "subscribe": topic,
        "kafka.client.id": client_id,
        "retryTimeoutMs": f"{seconds * 1000:.0f}",
    }
    with Lookup(source_options(asked, is_stream=False), option=None) as lookup:
        return len(lookup.keys())


# -- Connecting -----------------------------------------------------------------------------------
# A connection for one task, retried while no broker answers.


@contextmanager
def connected(
    bootstrap: Sequence[str], client_id: str, seconds_max: float, *, option: str | None = None
) -> Iterator[sync.Client]:
    """Connect, and close the connection at the end.

    Args:
        option: the option that sets `seconds_max`, for the error; None: there is none.

    Raises:
        RaftmqError: no broker has answered in time.
    """

    def connect() -> sync.Client:  # a new client for each attempt: one opens only once
        return stack.enter_context(sync.connect(list(bootstrap), client_id=client_id))

    with ExitStack() as stack:
        yield retried(connect, seconds_max, option=option)
