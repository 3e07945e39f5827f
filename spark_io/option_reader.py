"""Options as Spark hands them over, texts under names in lower case, read one by one. Pure.

Owns how values are written. Invariants: all problems are told in one error; names in it are those
of the documentation; the value of a name that is refused is not in it, as it may be a secret.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from raftmq.errors import InvalidConfig
from spark_io.option_names import KNOWN, client_names, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ValueT = TypeVar("ValueT")

NUMBER_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,15}) ?([a-z]*)", re.ASCII)
_SECONDS = {
    "us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0
}  # fmt: skip


class OptionReader:
    """
    Attributes:
        problems: so far.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): text for name, text in options.items() if text is not None}
        self.problems = [problem for name in self._given if (problem := _bad_name(name))]

    def raise_problems(self) -> None:
        """Raises InvalidConfig: there are any."""
        if self.problems:
            raise InvalidConfig(self.problems)

    def has(self, *names: str) -> bool:
        return any(name.lower() in self._given for name in names)

    def tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def refuse(self, *names: str, why: str) -> None:
        """Where they are given."""
        for name in names:
            if self.has(name):
                self.tell(f"{name}: {why}")

    # What is given under one of several names, of which one may be.

    def which(self, *names: str) -> str | None:
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            self.tell(f"{' and '.join(given)} are given; leave all but one out")
        return given[0] if given else None

    def read(self, *names: str, parse: Callable[[str], ValueT]) -> ValueT | None:
        """`parse` raises ValueError, which says what is expected. None: nothing is given."""
        name = self.which(*names)
        if name is None:
            return None
        text = self._given[name.lower()].strip()
        try:
            return parse(text)
        except ValueError as error:
            self.tell(f"{name} = {text!r}: {error}")
        return None

    def text(self, *names: str) -> str | None:
        return self.read(*names, parse=_text)

    def flag(self, *names: str, default: bool = False) -> bool:
        found = self.choice(*names, choices=("true", "false"))
        return default if found is None else found == "true"

    def choice(self, *names: str, choices: Sequence[str], why: str = "") -> str | None:
        """One of some words, in lower case."""

        def parse(text: str) -> str:
            if text.lower() not in choices:
                raise ValueError(f"expected {' or '.join(choices)}{why}")
            return text.lower()

        return self.read(*names, parse=parse)

    def number(self, *names: str, low: int = 0, high: int = NUMBER_MAX) -> int | None:
        """A whole number."""

        def parse(text: str) -> int:
            if low <= (number := _whole(text)) <= high:
                return number
            raise ValueError(f"expected {low} {'or more' if high == NUMBER_MAX else f'to {high}'}")

        return self.read(*names, parse=parse)

    def seconds(self, *names: str) -> float | None:
        """A duration as Spark writes it; without a unit it is in milliseconds."""
        return self.read(*names, parse=_seconds)

    def json(self, *names: str, parse: Callable[[object], ValueT]) -> ValueT | None:
        """`parse` raises ValueError if it is something else than expected."""
        return self.read(*names, parse=lambda text: parse(_json(text)))

    # What consumers and producers of raftmq check themselves.

    def client_numbers(self, fields: Mapping[str, str]) -> dict[str, int]:
        """
        Args:
            fields: option of the client -> its name in raftmq's SDK.
        """
        found = {
            field: self.read(*client_names(name), parse=_whole) for name, field in fields.items()
        }
        return {field: number for field, number in found.items() if number is not None}

    def check(self, make: Callable[[], object], fields: Mapping[str, str]) -> None:
        """Tell what `make` refuses, in words of these options."""
        try:
            make()
        except InvalidConfig as error:
            spellings = {
                field: self.which(*client_names(name)) or client_names(name)[0]
                for name, field in fields.items()
            }
            for problem in error.problems:
                self.tell(_respelled(problem, spellings))


def _bad_name(name: str) -> str:
    if name in KNOWN:
        return ""
    if told := refusal(name):
        return told
    prefixed = [spelling for spelling in client_names(name) if spelling in KNOWN]
    similar = prefixed or get_close_matches(name, list(KNOWN), n=1, cutoff=0.8)
    hint = f"did you mean {KNOWN[similar[0]]}?" if similar else "leave it out"
    return f"there is no option {name}; {hint}"


def _text(text: str) -> str:
    if not text:
        raise ValueError("there is nothing; say something, or leave it out")
    return text


def _whole(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("expected a whole number")
    return int(text)


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.lower())
    if not found or found[2] not in _SECONDS:
        raise ValueError("expected a number with us, ms, s, m, h or d, as in 15m")
    return int(found[1]) * _SECONDS[found[2]]


def _json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_members)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error})") from None


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Of two values for one name the first would be lost."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands there twice")
    return members


def _respelled(problem: str, spellings: Mapping[str, str]) -> str:
    """A name that is a word, too, is taken for a name in front of a value only."""
    patterns = [field if "_" in field else rf"{field}(?= = )" for field in spellings]
    return re.sub(rf"\b(?:{'|'.join(patterns)})(?!\w)", lambda found: spellings[found[0]], problem)
