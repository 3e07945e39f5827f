"""Options of `process`: its own, and those of its consumer that it takes. Checked. Pure.

Refused is what contradicts a commit of what is finished, by a member of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any

from raftmq.client.consumer.options import LATER, NAMES
from raftmq.client.dead_letters.letters import own_letters_problem
from raftmq.client.options import AT_LEAST_ONCE, check_options
from raftmq.client.processing.retry_policy import retry_policy
from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.processing.retry_policy import RetryPolicy

MAX_IN_HAND = 1_000  # two batches of max_poll_records: the next one is there when it is needed
CONCURRENCY_MAX = 10_000
IN_HAND_MAX = 1_000_000
# `assign` is refused with the reason.
OPTIONS = NAMES - {"assign"} | {"concurrency", "handler", "max_in_hand", "retry", "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """What `process` was given, checked.

    Attributes:
        concurrency: records that are handled at a time.
        policy: of records whose handler fails; None: the first error ends it.
        max_in_hand: records that are read and not finished.
        consumer: the options of the consumer.
    """

    concurrency: int
    policy: RetryPolicy | None
    max_in_hand: int
    consumer: dict[str, Any]


def process_options(
    topics: Sequence[object],
    handler: object,
    *,
    concurrency: object,
    retry: object,
    max_in_hand: object,
    stop: object,
    given: Mapping[str, Any],
) -> ProcessOptions:
    """Options from the arguments of a call.

    Args:
        given: those that go to the consumer.

    Raises:
        TypeError: an unknown option; suggests the one that may be meant.
        InvalidConfig: all bad values at once.
    """
    check_options("process", given, OPTIONS, later=[*LATER, "assign"])
    problems, group = [], given.get("group")
    if isinstance(group, str) and (problem := own_letters_problem(group, topics)):
        problems.append(problem)
    if not callable(handler):
        problems.append(f"handler = {handler!r}: expected a function of a record")
    elif isgeneratorfunction(handler) or isasyncgenfunction(handler):
        # Called, it makes a generator that nobody runs, and every record would count as handled.
        problems.append(f"handler = {handler!r}: has `yield`, so that calling it does nothing")
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        problems.append(f"stop = {stop!r}: expected an event, as of trio, asyncio or threading")
    at_a_time = _whole("concurrency", concurrency, 1, CONCURRENCY_MAX, problems)
    in_hand = _whole("max_in_hand", max_in_hand, 2 * at_a_time, IN_HAND_MAX, problems)
    if in_hand < 2 * at_a_time <= IN_HAND_MAX:
        problems[-1] += ": twice `concurrency` or more, as one partition has about half"
    policy = None
    try:
        policy = retry_policy(retry)
    except InvalidConfig as error:
        problems += error.problems
    problems += _bad_for_consumer(given)
    if problems:
        raise InvalidConfig(problems)
    # Work must not be missed because its first worker came late; a consumer begins at "latest".
    start = {} if "start" in given or "auto_offset_reset" in given else {"start": "earliest"}
    moves = {"retry": policy} if policy is not None and not policy.in_place else {}
    return ProcessOptions(
        concurrency=at_a_time,
        policy=policy,
        max_in_hand=in_hand,
        consumer={**start, **given, **moves},
    )


def _whole(name: str, given: object, low: int, high: int, problems: list[str]) -> int:
    is_whole = isinstance(given, int) and not isinstance(given, bool)
    number = given if isinstance(given, int) and is_whole else low
    if not is_whole or not low <= number <= high:
        problems.append(f"{name} = {given!r}: expected a whole number from {low} to {high}")
    return number


def _bad_for_consumer(given: Mapping[str, Any]) -> list[str]:
    problems = []
    if given.get("group") is None:
        problems.append('process needs a group, as in group="billing"')
    if given.get("assign") is not None:
        problems.append(
            "assign: process is a member of its group, which deals out the partitions: name topics"
        )
    if given.get("commit", "batch") != "batch":
        problems.append(
            f"commit = {given['commit']!r}: process commits what is finished, every "
            "commit_interval_ms: leave it out"
        )
    if given.get("delivery", AT_LEAST_ONCE) not in (AT_LEAST_ONCE, None):
        problems.append(
            f"delivery = {given['delivery']!r}: process delivers at least once: leave it out, or "
            "see raftmq.exactly_once"
        )
    return problems
