"""Keys of the queue workload: active partitions, next values, fresh topics. Pure.

Owns the names, and how a value is written as the bytes of a record. A key is one partition,
`<topic>-<number>`; the name of its topic begins with the acks of its writers. Values of a key rise
by one. A key that has had enough of them is replaced by one of a fresh topic, as long as there may
be more topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.history.event import ACKS_ALL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

ACKS = {"all": ACKS_ALL, "1": 1, "2": 2}  # as topics are named, and as a request says it
PARTITIONS_PER_TOPIC = 2
UNREADABLE = -1  # in place of a value: bytes that no sender has written


def key_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def split_key(key: str) -> tuple[str, int]:
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)


def acks_of(key: str) -> int:
    """Of a key or a topic, as a request says it."""
    return ACKS[key.partition("-")[0]]


def encode_value(value: int, *, padding_bytes: int = 0) -> bytes:
    return b"%d" % value + b" " * padding_bytes


def decode_value(data: object) -> int:
    """`UNREADABLE` for what is no value."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        text = bytes(data).rstrip(b" ")
        if text.isdigit():
            return int(text)
    return UNREADABLE


class Keys:
    """
    Args:
        matrix: the acks of topics, in turn; a name may come more than once.
        active_max: keys that are written to at a time.
        values_max: a key retires after so many values at most; how many is drawn.
        topics_max: of a run, until `allow_another`.
        partitions: of a topic.

    Attributes:
    partitions: of a topic.
    everything: each key that there ever was, in the order of their making.
    active: those that are written to.
    """

    def __init__(
        self,
        random: Random,
        *,
        matrix: Sequence[str],
        active_max: int = 8,
        values_max: int = 1000,
        topics_max: int = 40,
        partitions: int = PARTITIONS_PER_TOPIC,
    ) -> None:
        assert matrix, "no topic could be made"
        assert set(matrix) <= set(ACKS), f"acks {matrix}: expected some of {list(ACKS)}"
        self._random, self._matrix = random, tuple(matrix)
        self._active_max, self._values_max = active_max, values_max
        self._topics_left, self._topic_count = topics_max, 0
        self.partitions = partitions
        self.everything: list[str] = []
        self.active: list[str] = []
        self._spare: list[str] = []
        self._left: dict[str, int] = {}  # values until a key retires
        self._last: dict[str, int] = {}  # value of each key
        self._pulsed: set[str] = set()

    # -- topics ----------------------------------------------------------------------------

    def next_topic(self) -> str | None:
        """The name of one more, if it is wanted: there is always a spare one."""
        known = len(self.active) + len(self._spare)
        if self._topics_left == 0 or known >= self._active_max + self.partitions:
            return None
        self._topics_left -= 1
        self._topic_count += 1
        acks = self._matrix[(self._topic_count - 1) % len(self._matrix)]
        return f"{acks}-{self._topic_count}"

    def on_refused(self) -> None:
        """It certainly was not made: another one may be, under another name."""
        self._topics_left += 1

    def allow_another(self) -> None:
        """Topic, besides those of the beginning."""
        self._topics_left += 1

    def on_made(self, topic: str) -> None:
        """It can be used."""
        for partition in range(self.partitions):
            key = key_of(topic, partition)
            assert key not in self._last, f"{key} was made before"
            self.everything.append(key)
            self._spare.append(key)
            self._last[key] = 0
            self._left[key] = self._drawn_limit()
        while self._spare and len(self.active) < self._active_max:
            self.active.append(self._spare.pop(0))

    # -- values ----------------------------------------------------------------------------

    def choose(self) -> str:
        """One that is active, each twice as likely as the one before it."""
        assert self.active, "no topic was made yet"
        weights = [1 << place for place in range(len(self.active))]
        return self._random.choices(self.active, weights)[0]

    def take(self, key: str, count: int) -> tuple[int, ...]:
        """The next values of a key, which may retire then."""
        values = self.take_steadily(key, count)
        self._left[key] -= count
        if self._left[key] <= 0 and self._spare and key in self.active:
            self.active[self.active.index(key)] = self._spare.pop(0)
            self._pulsed.discard(key)
        return values

    def take_steadily(self, key: str, count: int) -> tuple[int, ...]:
        """The same by a pulse, which wears no key out."""
        first = self._last[key] + 1
        self._last[key] += count
        return tuple(range(first, first + count))

    # -- pulses ----------------------------------------------------------------------------

    def pulse_key(self, held: str | None) -> str | None:
        """The key for a pulse that had `held` so far: the same while it is active.

        Else another one of those that all replicas must hold and that no other pulse has.
        """
        if held in self._pulsed:
            return held
        for key in reversed(self.active):
            if acks_of(key) == ACKS_ALL and key not in self._pulsed:
                self._pulsed.add(key)
                return key
        return None

    def _drawn_limit(self) -> int:
        """Often few, sometimes many: as even as can be by orders of magnitude."""
        return max(1, int(float(self._values_max) ** self._random.random()))
