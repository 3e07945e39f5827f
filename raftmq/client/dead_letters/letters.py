"""Dead letters and retries: the names of a group's topics, and the headers that tell where a record
comes from. Pure.

A record that is moved is the record as it was sent, its key, value, headers and tags, with a few
headers whose names are reserved; what is written here is read here.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from raftmq.model import GROUP_CHARS_MAX
from raftmq.topic_config import DAY_MS, TOPIC_NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from raftmq.wire.batch.record_headers import Headers

# Topics of raftmq itself, which patterns of consumers never match.
INTERNAL_PREFIX = "__"
DEAD_PREFIX, RETRY_PREFIX = "__dead.", "__retry."
REDRIVE_PREFIX = "__redrive."  # of the group whose offset says how far a redrive has come
RETENTION_MS, RETRY_RETENTION_MS = 30 * DAY_MS, 14 * DAY_MS

ORIGIN, ATTEMPTS, ERROR = "raftmq.origin", "raftmq.attempts", "raftmq.error"
GROUP, REDRIVEN = "raftmq.group", "raftmq.redriven"
RESERVED = frozenset({ORIGIN, ATTEMPTS, ERROR, GROUP, REDRIVEN})
ERROR_CHARS_MAX = 300

_HASH_DIGITS = 8
# So that the longest of the names that are made of it is one, of a topic and of a group.
_NAME_CHARS_MAX = min(TOPIC_NAME_CHARS_MAX, GROUP_CHARS_MAX) - len(REDRIVE_PREFIX)
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_NO_NAME = re.compile(r"[^a-zA-Z0-9._-]+")
# What a header may say before it is taken for something else, such as a number of a megabyte.
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


# -- Names ----------------------------------------------------------------------------------------


def group_part(group: str) -> str:
    """The part of names of topics that stands for a group: its own name, where a topic may have it
    and it is not longer than 190 characters, or what is left of it and 8 hex digits of its SHA-256.
    """
    if len(group) <= _NAME_CHARS_MAX and _NAME.fullmatch(group):
        return group
    digits = hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    slug = _NO_NAME.sub("-", group).strip("-")[: _NAME_CHARS_MAX - _HASH_DIGITS - 1]
    return f"{slug}-{digits}" if slug else digits


def dead_letter_topic(group: str) -> str:
    return DEAD_PREFIX + group_part(group)


def retry_topic(group: str) -> str:
    """Where records wait for their next attempt, whatever topic they stood in."""
    return RETRY_PREFIX + group_part(group)


def own_letters_problem(group: str, topics: Collection[object]) -> str:
    """Why a group must not move what it reads from these topics; empty if it may."""
    name = dead_letter_topic(group)
    if name not in topics:
        return ""
    return (
        f"{name} has the dead letters of this group: one that fails again would be read again, for"
        " ever; read it in a group of its own"
    )


# -- Headers --------------------------------------------------------------------------------------


class ReadRecord(Protocol):
    """The part of a ConsumerRecord that is used here; its module imports this one."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> Headers: ...


class Origin(NamedTuple):
    """Where a record stood first. As text: `orders/3/1042/1764364800000`.

    Attributes:
        timestamp: of the record, in milliseconds since 1970-01-01 UTC; -1 where it had none.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """None: it is none. The name of a topic has no slash."""
        topic, *numbers = text.split("/")
        if len(numbers) != 3 or not topic or not all(map(_NUMBER.fullmatch, numbers)):
            return None
        partition, offset, timestamp = map(int, numbers)
        return cls(topic, partition, offset, timestamp)


class DeadLetter(NamedTuple):
    """What the headers of a moved record say; None, or empty, where one is missing or wrong.

    Attributes:
        attempts: how often its program has tried it.
        error: class and first line.
        redriven: how often it was sent back.
    """

    origin: Origin | None
    attempts: int | None
    error: str
    group: str
    redriven: int


def letter_headers(record: ReadRecord, group: str, *, attempts: int, error: str) -> Headers:
    """The headers of a record that is moved: those it has, and what is added."""
    added = {ORIGIN: str(origin_of(record)), ATTEMPTS: str(attempts), ERROR: error, GROUP: group}
    kept = [(name, value) for name, value in record.headers if name not in added]
    return (
        *kept,
        *((name, text.encode("utf-8", "replace")) for name, text in added.items() if text),
    )


def origin_of(record: ReadRecord) -> Origin:
    """Where it stood first: a record that was moved, and is read where it was moved to, keeps its
    origin. In other topics these headers are the program's.
    """
    if record.topic.startswith(INTERNAL_PREFIX):
        before = read_letter(record.headers).origin
        if before is not None:
            return before
    return Origin(record.topic, record.partition, record.offset, record.timestamp)


def attempts_before(record: ReadRecord, group: str) -> int:
    """How often it was tried before it was moved to the topic of retries from which it was read."""
    if record.topic != retry_topic(group):
        return 0
    return max(read_letter(record.headers).attempts or 0, 0)


def read_letter(headers: Headers) -> DeadLetter:
    texts = {
        name: value.decode("utf-8", "replace")
        for name, value in headers
        if value is not None and name in RESERVED
    }
    return DeadLetter(
        Origin.parsed(texts.get(ORIGIN, "")),
        _number(texts.get(ATTEMPTS, "")),
        texts.get(ERROR, ""),
        texts.get(GROUP, ""),
        _number(texts.get(REDRIVEN, "")) or 0,
    )


def redriven_headers(headers: Headers, letter: DeadLetter) -> Headers:
    """Of a dead letter that is sent back: those of the program, and how often it was sent back."""
    return (*plain_headers(headers), (REDRIVEN, str(letter.redriven + 1).encode()))


def plain_headers(headers: Headers) -> Headers:
    """Those of the program."""
    return tuple(one for one in headers if one[0] not in RESERVED)


def error_text(error: BaseException | str | None) -> str:
    """Its class and the first line of what it says, 300 characters at most; of a text its first
    line.
    """
    if error is None:
        return ""
    try:
        said = str(error)
    except Exception:  # the program's own class may fail at it
        said = ""
    line = next((one for one in map(str.strip, said.splitlines()) if one), "")
    if not isinstance(error, str):
        line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return line[:ERROR_CHARS_MAX]


def most_frequent(errors: Mapping[str, int], count: int) -> Sequence[tuple[str, int]]:
    """Errors and how often they are there, the most frequent first."""
    return sorted(errors.items(), key=lambda one: (-one[1], one[0]))[:count]


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
