"""Findings of a verification: severity, place and text, with repeated ones counted.

Owns severity, and the counting of repeats, so that a ruined index is one finding and not a hundred
thousand. Decides nothing about what is wrong.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Severity(StrEnum):
    ERROR = "error"  # readers would miss or refuse something
    WARNING = "warning"  # the log repairs it, or does without it


class Finding(NamedTuple):
    """`position` is a byte of `file`, `offset` one of the log; None where there is none."""

    severity: Severity
    file: Path
    what: str
    position: int | None = None
    offset: int | None = None


class RepeatedFinding(NamedTuple):
    """How many `more` there are of finding number `place`."""

    place: int
    more: int

    def one_more(self) -> RepeatedFinding:
        return RepeatedFinding(self.place, self.more + 1)


class Findings:
    """All findings of one folder, in the order in which they were met."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._repeats: dict[tuple[Path, str], RepeatedFinding] = {}

    def error(
        self, file: Path, what: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        self._found.append(Finding(Severity.ERROR, file, what, position, offset))

    def warning(
        self, file: Path, what: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        self._found.append(Finding(Severity.WARNING, file, what, position, offset))

    def repeated(self, finding: Finding) -> None:
        """The same text about the same file counts as one finding, at its first place."""
        key = (finding.file, finding.what)
        if key not in self._repeats:
            self._repeats[key] = RepeatedFinding(len(self._found), 0)
            self._found.append(finding)
        else:
            self._repeats[key] = self._repeats[key].one_more()

    def all(self) -> list[Finding]:
        found = list(self._found)
        for place, more in self._repeats.values():
            if more:
                found[place] = found[place]._replace(what=f"{found[place].what} (and {more} more)")
        return found
