"""The types of register operations: reads, writes and compare-and-sets with their outcomes.

Owns the types only. A history is any collection of operations; one that has not completed has an
unknown outcome.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable

    Value: TypeAlias = Hashable


class Kind(StrEnum):
    READ = "read"
    WRITE = "write"
    CAS = "cas"


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"  # certainly had no effect
    INFO = "info"  # unknown: may have had its effect, may have it later, or never


class Unknown(Enum):
    VALUE = "?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation of a client on one register.

    Attributes:
        value: what was written or read; of a compare-and-set the new value.
        expected: what a compare-and-set replaces.
        found: what a compare-and-set that failed said was there instead, if it said so. That
            makes it a read.
        returned_at: of no meaning where the outcome is unknown.
    """

    process: int
    kind: Kind
    key: str
    outcome: Outcome
    invoked_at: float
    returned_at: float = math.inf
    value: Value = None
    expected: Value = None
    found: Value = Unknown.VALUE

    @property
    def is_read(self) -> bool:
        return self.kind is Kind.READ or self.outcome is Outcome.FAIL

    @property
    def needs(self) -> Value:
        """The value that must be there for it to have its effect; Unknown.VALUE: any."""
        if self.outcome is Outcome.FAIL:
            return self.found
        return {Kind.READ: self.value, Kind.WRITE: Unknown.VALUE, Kind.CAS: self.expected}[
            self.kind
        ]

    def __str__(self) -> str:
        what = (
            f"{self.expected!r} to {self.value!r}" if self.kind is Kind.CAS else f"{self.value!r}"
        )
        found = "" if self.found is Unknown.VALUE else f", found {self.found!r}"
        end = "..." if self.outcome is Outcome.INFO else f"{self.returned_at:g}"
        return (
            f"[{self.invoked_at:g}, {end}] process {self.process}: "
            f"{self.kind} {what} ({self.outcome}{found})"
        )
