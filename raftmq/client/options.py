"""Checks of option names and words (unknown ones are typing errors), and of `delivery`. Pure.

Which values an option may have is checked by its owner: `producer/options.py`,
`consumer/options.py`.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from raftmq.errors import InvalidConfig
from raftmq.model import IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


def check_options(
    kind: str, given: Iterable[str], known: Collection[str], *, later: Collection[str] = ()
) -> None:
    """Refuse unknown options.

    Args:
        kind: whose options, in one word.
        later: reserved names; the caller explains them itself.

    Raises:
        TypeError: names of `given` that are in neither; with the options that may be meant.
    """
    unknown = [name for name in given if name not in known and name not in later]
    problems = [_problem(name, known) for name in unknown]
    if problems:
        raise TypeError(
            f"{kind}: {'; '.join(problems)}; the options are {', '.join(sorted(set(known)))}"
        )


# Kafka's names of what has another one here, and which is not like it.
_KAFKA_NAMES = {"enable_auto_commit": "commit", "num_partitions": "partitions"}


def _problem(name: str, known: Collection[str]) -> str:
    meant = _KAFKA_NAMES.get(name)
    similar = [meant] if meant in known else get_close_matches(name.lower(), list(known), n=1)
    hint = f" (did you mean {similar[0]!r}?)" if similar else ""
    return f"no option {name!r}{hint}"


def bad_function(name: str, given: object, example: str) -> list[str]:
    """What is wrong with a function that the client calls, and does not await; None is fine."""
    if given is not None and not callable(given):
        return [f"{name} = {given!r}: expected a function, such as {example}"]
    if iscoroutinefunction(given):
        return [f"{name} = {given!r}: expected a function that is no `async def`"]
    return []


# What other systems, and people, call the two ends.
_OTHER_WORDS = {
    **dict.fromkeys(("beginning", "begin", "oldest", "first", "smallest", "start"), "earliest"),
    **dict.fromkeys(("end", "newest", "last", "largest", "new"), "latest"),
}


def likely(given: object, choices: Sequence[str]) -> str:
    """The word that is most likely meant, as the end of a message; empty: none."""
    if not isinstance(given, str):
        return ""
    words = {word: _OTHER_WORDS[word] for word in _OTHER_WORDS if _OTHER_WORDS[word] in choices}
    words |= {choice: choice for choice in choices}
    found = get_close_matches(given.lower(), list(words), n=1)
    return f" (did you mean {words[found[0]]!r}?)" if found else ""


def bad_choice(name: str, given: object, choices: Sequence[str]) -> list[str]:
    """A problem with an option that takes one of some words; empty: none."""
    if isinstance(given, str) and given in choices:
        return []
    expected = ", ".join(f'"{choice}"' for choice in choices)
    return [f"{name} = {given!r}: expected {expected}{likely(given, choices)}"]


# The values of `isolation_level`, the default first.
ISOLATIONS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


def isolation_of(given: str) -> IsolationLevel:
    """Raises InvalidConfig: there is no such level."""
    if problems := bad_choice("isolation_level", given, list(ISOLATIONS)):
        raise InvalidConfig(problems)
    return ISOLATIONS[given]


# -- Delivery -------------------------------------------------------------------------------------
# `delivery`: one word for how often a record may arrive, in place of several options. Pure.
#
# Owns the words and the message of a contradiction; producer and consumer define which options each
# word sets. A word never overrides an explicit option: a contradiction is refused.


DeliveryName: TypeAlias = Literal["at_most_once", "at_least_once"]
AT_MOST_ONCE = "at_most_once"  # never twice; lost where something fails
AT_LEAST_ONCE = "at_least_once"  # sent again until it is certain; twice where something fails
EXACTLY_ONCE = "exactly_once"  # what is read and what is written count together, or not at all
ONE_OR_MORE = range(1, sys.maxsize)  # stands for any positive count in `Allowed`

# For each word the values, or ranges of values, that an option may have with it. The first is set.
Allowed: TypeAlias = "Mapping[str, Mapping[str, tuple[object, ...]]]"


def with_delivery(given: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
    """The arguments without `delivery`, and with the options that it sets.

    Args:
        given: the explicit arguments of a call, without defaults.

    Raises:
        InvalidConfig: an unknown word, or all options that contradict it.
    """
    rest = dict(given)
    word = rest.pop("delivery", None)
    if word is None:
        return rest
    chosen = allowed[_checked(word, allowed)]
    problems = [
        contradiction(word, name, rest[name], values)
        for name, values in chosen.items()
        if name in rest and not _is_among(rest[name], values)
    ]
    if problems:
        raise InvalidConfig(problems)
    return {**{name: values[0] for name, values in chosen.items()}, **rest}


def _checked(word: object, allowed: Allowed) -> str:
    if not isinstance(word, str) or word not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise InvalidConfig([f"delivery = {word!r}: expected {names}"])
    return word


def contradiction(word: str, name: str, value: object, values: tuple[object, ...]) -> str:
    """The problem of an option that has another value than `delivery` allows."""
    names = " or ".join(_shown(each) for each in values)
    return (
        f'{name} = {_shown(value)} with delivery = "{word}", which takes {name} = {names}: '
        "leave one of them out"
    )


def _is_among(value: object, values: tuple[object, ...]) -> bool:
    """Also of the same type: True is not 1 here."""
    return any(
        type(value) is int and value in each
        if isinstance(each, range)
        else type(value) is type(each) and value == each
        for each in values
    )


def _shown(value: object) -> str:
    if value == ONE_OR_MORE:  # a range would not say that to a user
        return "1 or more"
    return f'"{value}"' if isinstance(value, str) else repr(value)
