"""`RetryPolicy` and `Exponential`: how often a record is handled, the pauses between, and what
becomes of it then. Pure.

Sleeps never, and draws from the Random that it is given, so that simulations repeat. Kafka has no
counterpart; Celery: autoretry_for, retry_backoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias

from raftmq.client.options import likely
from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from random import Random
    from typing import Literal

    RetryChoice: TypeAlias = "RetryPolicy | Literal['in_place'] | None"

IN_PLACE = "in_place"
ATTEMPTS_MAX = 1_000
PAUSE_SECONDS_MAX = 30 * 86_400  # as long as a record can be delayed at the most


def _is_number(given: object) -> bool:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return is_number and isfinite(given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Exponential:
    """Pauses that grow, give or take a fifth, so that what has failed together is not tried again
    together.

    Attributes:
        first_seconds: the pause after the first attempt.
        factor: each pause is so many times the one before.
        maximum: the longest pause, in seconds.
    """

    first_seconds: float
    factor: float = 2
    maximum: float = 7_200

    def __post_init__(self) -> None:
        problems = [
            f"Exponential: {name} = {given!r}: expected a number from {low} to {high}"
            for name, given, low, high in (
                ("first_seconds", self.first_seconds, 0, PAUSE_SECONDS_MAX),
                ("factor", self.factor, 1, 1_000),
                ("maximum", self.maximum, 0, PAUSE_SECONDS_MAX),
            )
            if not _is_number(given) or not low <= given <= high
        ]
        if problems:
            raise InvalidConfig(problems)

    def pause_seconds(self, attempts: int, random: Random) -> float:
        """The pause after so many attempts, never longer than `maximum`."""
        seconds = self.usual_seconds(attempts)
        # Around it, and below the maximum, so that those that have reached that are apart as well.
        return random.uniform(0.8 * seconds, min(1.2 * seconds, self.maximum))

    def usual_seconds(self, attempts: int) -> float:
        """The same, without chance."""
        try:
            seconds = self.first_seconds * float(self.factor) ** (attempts - 1)
        except OverflowError:
            seconds = self.maximum if self.first_seconds else 0
        return min(seconds, self.maximum)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What becomes of a record with which a program fails.

    Attributes:
        attempts: how often a record is handled at the most, the first time included.
        backoff: the pauses between attempts.
        dead_letters: after the last attempt the record goes to the group's dead letters, and the
            program goes on; else the error is raised, and it ends.
        in_place: the record is tried again where it stands: records with its key wait for it. Else
            it is moved to the group's topic of retries, and comes back after the pause: nothing
            waits for it, and the order of its key is given up.
    """

    attempts: int = 16
    backoff: Exponential = Exponential(5, factor=2, maximum=7_200)
    dead_letters: bool = True
    in_place: bool = False

    def __post_init__(self) -> None:
        problems = []
        attempts = self.attempts
        is_whole = isinstance(attempts, int) and not isinstance(attempts, bool)
        if not is_whole or not 1 <= attempts <= ATTEMPTS_MAX:
            expected = f"expected a whole number from 1 to {ATTEMPTS_MAX}"
            problems.append(f"RetryPolicy: attempts = {attempts!r}: {expected}")
        if not isinstance(self.backoff, Exponential):
            expected = "expected an Exponential, such as Exponential(5)"
            problems.append(f"RetryPolicy: backoff = {self.backoff!r}: {expected}")
        for name in ("dead_letters", "in_place"):
            given = getattr(self, name)
            if not isinstance(given, bool):
                problems.append(f"RetryPolicy: {name} = {given!r}: expected True or False")
        if problems:
            raise InvalidConfig(problems)


def retry_policy(given: object) -> RetryPolicy | None:
    """The policy of a `retry=`; None: the first error ends it.

    Raises:
        InvalidConfig: it is none.
    """
    if given is None or isinstance(given, RetryPolicy):
        return given
    if given == IN_PLACE:
        return RetryPolicy(in_place=True)
    expected = f'expected "{IN_PLACE}", a RetryPolicy, or None'
    raise InvalidConfig([f"retry = {given!r}: {expected}{likely(given, [IN_PLACE])}"])


# -- Fates ----------------------------------------------------------------------------------------


class RecordFate(Enum):
    """What becomes of a record that has failed."""

    IN_PLACE = auto()  # it is tried again where it stands
    RETRY_TOPIC = auto()  # it is moved, and comes back
    DEAD_LETTER = auto()  # it is set aside
    RAISED = auto()  # its error ends the program


def fate_of(
    policy: RetryPolicy | None, attempts: int, *, is_undecodable: bool = False
) -> RecordFate:
    """What becomes of a record after so many attempts, all that it ever had.

    Args:
        is_undecodable: a deserializer has refused it, and not the handler.
    """
    if policy is None:
        return RecordFate.RAISED
    # In place the same process would refuse it again, while its key waits; moved, it may come back
    # to one that has been repaired.
    is_hopeless = is_undecodable and policy.in_place
    if attempts < policy.attempts and not is_hopeless:
        return RecordFate.IN_PLACE if policy.in_place else RecordFate.RETRY_TOPIC
    return RecordFate.DEAD_LETTER if policy.dead_letters else RecordFate.RAISED
