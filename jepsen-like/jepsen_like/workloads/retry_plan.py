"""What the retries workload plans: how each record fares, which groups there are, how members work.

Pure. How a record fares is a function of its key and value alone, so that each process that handles
it does the same, as often as it comes.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from jepsen_like.history.record_fate import RecordFate

if TYPE_CHECKING:
    from random import Random

ATTEMPTS = 3  # of the policy: more than a record needs that is good at last
# Between attempts; as the SDK says, give or take a fifth.
FIRST_PAUSE_SECONDS, PAUSE_FACTOR, PAUSE_SECONDS_MAX = 0.6, 2.5, 2.0
PAUSE_SHARE_MIN = 0.8

BAD_OF = 30  # of so many records one fails for a while, one always, one is rejected
COMMITS = ("batch", "record", "manual")  # none before the work: it would leave records out
# Of lives of the group that is exactly once: these run the loop of the SDK, which looks for what
# fails in halves of a batch, and takes long; the others move each record in transactions of their
# own.
LOOP_CHANCE = 1 / 3


class Way(Enum):
    """How the members of a group handle records.

    Attributes:
        BY_HAND: one after the other, with `retry` and `reject`, and then a commit.
        PROCESS: several at a time, in a handler that raises; the SDK moves what has failed.
        EXACTLY_ONCE: in transactions, with results.
    """

    BY_HAND = "by-hand"
    PROCESS = "process"
    EXACTLY_ONCE = "exactly-once"


class RetryGroup(NamedTuple):
    """Attributes:
    commit: of its members; empty where they are not asked.
    """

    way: Way
    commit: str = ""

    @property
    def name(self) -> str:
        return self.way.value

    @property
    def can_reject(self) -> bool:
        """Else what is to be rejected fails like other records: a handler can only raise."""
        return self.way is not Way.PROCESS


def draw_retry_groups(random: Random) -> list[RetryGroup]:
    return [
        RetryGroup(Way.BY_HAND, random.choice(COMMITS)),
        RetryGroup(Way.EXACTLY_ONCE),
        RetryGroup(Way.PROCESS),
    ]


def record_fate(key: str, value: int) -> RecordFate:
    draw = crc32(f"{key}/{value}".encode())
    match draw % BAD_OF:
        case 0:
            return RecordFate.TWICE if draw // BAD_OF % 2 else RecordFate.ONCE
        case 1:
            return RecordFate.ALWAYS
        case 2:
            return RecordFate.REJECTED
    return RecordFate.GOOD


def pauses_min() -> list[float]:
    """By attempt, from the first one on: the shortest pause that may follow it."""
    pauses = (FIRST_PAUSE_SECONDS * PAUSE_FACTOR**number for number in range(ATTEMPTS - 1))
    return [round(PAUSE_SHARE_MIN * min(one, PAUSE_SECONDS_MAX), 3) for one in pauses]
