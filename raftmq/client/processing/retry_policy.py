"""`RetryPolicy` and `Exponential`: how often a record is handled, and the pauses between. Pure.

Sleeps never, and draws from the Random that it is given, so that simulations repeat. Kafka has no
counterpart; Celery: autoretry_for, retry_backoff.
"""

from __future__ import annotations

from dataclasses import dataclass
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
        try:
            seconds = self.first_seconds * float(self.factor) ** (attempts - 1)
        except OverflowError:
            seconds = self.maximum if self.first_seconds else 0
        jitter = random.uniform(0.8, 1.2)
        return min(min(seconds, self.maximum) * jitter, self.maximum)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What becomes of a record whose handler fails.

    Attributes:
        attempts: how often a record is handled at the most, the first time included.
        backoff: the pauses between attempts.
        dead_letters: after the last attempt the record goes to the group's dead letters, and the
            program goes on; else the error is raised, and it ends.
        in_place: the record is tried again where it stands: records with its key wait for it.
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
            problems.append(f"RetryPolicy: backoff = {self.backoff!r}: expected an Exponential")
        for name in ("dead_letters", "in_place"):
            given = getattr(self, name)
            if not isinstance(given, bool):
                problems.append(f"RetryPolicy: {name} = {given!r}: expected True or False")
        if problems:
            raise InvalidConfig(problems)


def retry_policy(given: object) -> RetryPolicy | None:
    """The policy of a `retry=`; None: the first error ends it.

    Raises:
        InvalidConfig: it is none, or one that asks for what is not there.
    """
    if given is None:
        return None
    if given == IN_PLACE:
        return RetryPolicy(in_place=True)
    if not isinstance(given, RetryPolicy):
        expected = f'expected "{IN_PLACE}", a RetryPolicy, or None'
        raise InvalidConfig([f"retry = {given!r}: {expected}{likely(given, [IN_PLACE])}"])
    if not given.in_place:
        raise InvalidConfig(
            [
                "retry: moving a record aside needs delayed records, which are not there yet: "
                "in_place=True"
            ]
        )
    return given
