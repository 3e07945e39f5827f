"""What one transaction of the workload does, and how it ends: drawn by chance. Pure.

Most blocks are short and committed, so that many are decided; each other end comes often enough
that a run of five minutes has a hundred of it, but pauses, which take longer than all others.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

STEPS_MAX = 8
VALUES_MAX = 5  # of one send
COPIES_MAX = 3  # polls of a copying block, and sends of their results
POLL_SHARE = 0.3  # of the steps of other blocks
KEYS_MIN, KEYS_MAX = 3, 8


class End(Enum):
    COMMIT = "commit"
    ABORT = "abort"
    CRASH = "crash"  # nothing more leaves the program
    PAUSE = "pause"  # beyond the timeout, then the commit is tried
    HELD = "held"  # the commit arrives when the group has gone on without its member
    OVERTAKEN = "overtaken"  # another owner opens the id, then it goes on and commits


# In a hundred.
_ENDS = {End.COMMIT: 78, End.ABORT: 11, End.CRASH: 4, End.PAUSE: 1, End.OVERTAKEN: 6}
_COPYING_ENDS = {End.COMMIT: 70, End.ABORT: 10, End.CRASH: 4, End.HELD: 12, End.OVERTAKEN: 4}


class Send(NamedTuple):
    key: str
    values: int


class Poll(NamedTuple):
    """Of the reader that goes along."""


class Copy(NamedTuple):
    """Poll as a member of the group, and send the result of each record to this key."""

    key: str


Step: TypeAlias = Send | Poll | Copy


class Block(NamedTuple):
    """`late`: what is sent once the other owner has opened the id, or after the pause."""

    steps: tuple[Step, ...]
    end: End
    late: tuple[Send, ...] = ()


def draw_block(
    random: Random, *, inputs: Sequence[str], outputs: Sequence[str], is_copying: bool
) -> Block:
    """
    Args:
        inputs, outputs: keys: what copying blocks read, and what they write. Others write to both.
        is_copying: of a member of the group.
    """
    ends = _COPYING_ENDS if is_copying else _ENDS
    end = random.choices(list(ends), list(ends.values()))[0]
    if is_copying:  # each result belongs to an input: there is nothing to send but those
        count = random.randint(1, COPIES_MAX)
        return Block(tuple(Copy(random.choice(outputs)) for _ in range(count)), end)
    everything = [*inputs, *outputs]
    keys = random.sample(everything, min(len(everything), random.randint(KEYS_MIN, KEYS_MAX)))
    steps = tuple(_draw_step(random, keys) for _ in range(random.randint(1, STEPS_MAX)))
    late = (_draw_send(random, keys),) if end in (End.PAUSE, End.OVERTAKEN) else ()
    return Block(steps, end, late)


def _draw_step(random: Random, keys: Sequence[str]) -> Step:
    return Poll() if random.random() < POLL_SHARE else _draw_send(random, keys)


def _draw_send(random: Random, keys: Sequence[str]) -> Send:
    return Send(random.choice(keys), random.randint(1, VALUES_MAX))
