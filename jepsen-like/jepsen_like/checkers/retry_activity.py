"""What groups with retries did, in numbers: for figures, and for whether it was enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account


class RetryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    handled: records of which an attempt ended well, again and again counted.
    returns: records that were handed out from topics of retries.
    letters, crashes: of all groups, and of all members.
    """

    handled: int = 0
    returns: int = 0
    letters: int = 0
    crashes: int = 0

    def few(self, wanted: RetryCounts) -> Iterator[str]:
        """Sentences; none: it is enough."""
        named = {
            "handled": "records were handled",
            "returns": "records came back",
            "letters": "dead letters were there",
            "crashes": "members crashed",
        }
        for name, what in named.items():
            count, least = getattr(self, name), getattr(wanted, name)
            if count < least:
                yield f"{count} {what}, {least} are wanted"


def counts(account: Account) -> RetryCounts:
    groups = account.retries.groups.values()
    attempts = [attempt for group in groups for attempt in group.all_attempts()]
    return RetryCounts(
        handled=sum(attempt.is_done for attempt in attempts),
        returns=sum(attempt.is_back for attempt in attempts),
        letters=sum(len(group.letters or ()) for group in groups),
        crashes=sum(group.crash_count for group in groups),
    )


def untold(account: Account) -> Iterator[str]:
    """Of which groups the end is not known: sentences."""
    for group in account.retries.groups.values():
        if group.left is None:
            yield f"nobody said what group {group.name!r} has left"
        if group.letters is None:
            yield f"nobody read the dead letters of group {group.name!r}"
        if group.is_exactly_once and group.results is None:
            yield f"nobody read the results of group {group.name!r}"
