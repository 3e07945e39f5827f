"""Versions of shared transactions: what is judged of members, and of the commits that list them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jepsen_like.checkers.verdict import judge
from jepsen_like.history.event import BadHistory, Type
from tests.jepsen_like.checkers.script import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

DRIVER, READER = 100, 101
MINE, OTHER = "checkpoint 1", "checkpoint 2"


class Versions(Script):
    """Of one id and one key; a member has the number of its process, and one record, whose value
    and offset is that number, too.
    """

    def join(
        self, tx: int, *, version: int = 0, lineage: str = MINE, is_done: bool = False
    ) -> None:
        asked = {"tx": tx, **_name(version, lineage)}
        self.begin(tx, "join", asked)
        self.end(tx, "join", {**asked, "is_done": is_done})

    def write(self, tx: int, *, version: int = 0) -> None:
        self.join(tx, version=version)
        sent = {"key": "k", "acks": -1, "values": [tx], "is_idempotent": True, "tx": tx}
        self.begin(tx, "send", sent)
        self.end(tx, "send", {**sent, "offsets": [tx], "is_repeated": False})

    def commit(
        self,
        *members: int,
        version: int = 0,
        kind: Type = Type.OK,
        is_repeated: bool = False,
        count: int | None = None,
        lineage: str = MINE,
    ) -> None:
        asked: dict[str, Any] = {**_name(version, lineage), "members": list(members)}
        self.begin(DRIVER, "commit-version", {**asked, "count": len(members)})
        told = {"is_repeated": is_repeated, "count": len(members) if count is None else count}
        self.end(DRIVER, "commit-version", told if kind is Type.OK else None, kind)

    def abort(self, version: int = 0) -> None:
        self.begin(DRIVER, "abort-version", _name(version, MINE))
        self.end(DRIVER, "abort-version", _name(version, MINE))

    def found_if_there(self, *values: int) -> dict[str, int]:
        """When the last reader gets exactly these."""
        self.phase("final")
        self.assign(process=READER)
        self.poll([(value, value) for value in values], process=READER)
        return self.found()


def _name(version: int, lineage: str) -> dict[str, Any]:
    return {"id": "v", "lineage": lineage, "version": version}


@pytest.fixture
def versions() -> Versions:
    """Three members have written version 0."""
    script = Versions()
    for tx in (1, 2, 3):
        script.write(tx)
    return script


# -- legal -------------------------------------------------------------------------------------


def test_who_is_listed_is_there_and_nobody_else(versions: Versions) -> None:
    """And it may be asked again."""
    versions.commit(1, 2)
    versions.commit(1, 2, is_repeated=True)
    assert versions.found_if_there(1, 2) == {}


@pytest.mark.parametrize("there", [(), (1, 2), (3,)])
def test_of_two_commits_without_an_answer_one_may_have_happened(
    versions: Versions, there: Sequence[int]
) -> None:
    versions.commit(1, 2, kind=Type.INFO)
    versions.commit(3, kind=Type.INFO)
    assert versions.found_if_there(*there) == {}


def test_who_is_told_that_it_is_done_may_be_told_of_another_commit(versions: Versions) -> None:
    versions.commit(1, kind=Type.INFO)
    versions.commit(2, 3, is_repeated=True, count=1)
    versions.join(4, is_done=True)
    assert versions.found_if_there(1) == {}


def test_a_version_that_was_skipped_is_done(versions: Versions) -> None:
    """Nothing of it is there, as a higher one is committed."""
    versions.write(4, version=2)
    versions.commit(4, version=2)
    versions.commit(1, 2, is_repeated=True)
    assert versions.found_if_there(4) == {}


def test_who_has_sent_nothing_may_be_listed_after_an_abort(versions: Versions) -> None:
    versions.join(4)
    versions.abort()
    versions.commit(4)
    assert versions.found_if_there() == {}


# -- wrong -------------------------------------------------------------------------------------


def test_who_is_not_listed_is_an_aborted_transaction(versions: Versions) -> None:
    versions.commit(1, 2)
    assert versions.found_if_there(1, 2, 3) == {"aborted-transaction-read": 1}


def test_a_version_in_part(versions: Versions) -> None:
    versions.commit(1, 2)
    found = versions.found_if_there(2)
    assert found["torn-transaction"] == 1


def test_a_version_of_unknown_outcome_in_part(versions: Versions) -> None:
    versions.commit(1, 2, kind=Type.INFO)
    assert versions.found_if_there(2) == {"torn-transaction": 1}


def test_a_version_that_is_not_there(versions: Versions) -> None:
    """The members of the listing, and the version as such."""
    versions.commit(1, kind=Type.FAIL)
    versions.commit(2, is_repeated=True)
    assert versions.found_if_there() == {"lost-transaction": 1}


def test_a_refused_commit_that_happened(versions: Versions) -> None:
    versions.commit(1, 2, kind=Type.FAIL)
    assert "aborted-transaction-read" in versions.found_if_there(1, 2)


def test_two_commits_of_one_version(versions: Versions) -> None:
    """Both by their answers, or by what is there."""
    versions.commit(1)
    versions.commit(2)
    assert versions.found_if_there(1, 2) == {"version-twice": 1}


def test_two_commits_that_can_be_seen(versions: Versions) -> None:
    versions.commit(1, kind=Type.INFO)
    versions.commit(2, kind=Type.INFO)
    assert versions.found_if_there(1, 2) == {"version-twice": 1}


@pytest.mark.parametrize(("version", "lineage"), [(1, MINE), (0, OTHER)])
def test_done_though_nobody_has_committed_it(
    versions: Versions, version: int, lineage: str
) -> None:
    """Of another lineage, the same number is another version."""
    versions.commit(1, 2, 3)
    versions.join(4, version=version, lineage=lineage, is_done=True)
    assert versions.found_if_there(1, 2, 3) == {"version-twice": 1, "lost-transaction": 1}


def test_a_version_that_is_open_again(versions: Versions) -> None:
    versions.commit(1, 2, 3)
    versions.join(4)
    assert versions.found_if_there(1, 2, 3) == {"version-twice": 1}


def test_another_count_than_was_asked(versions: Versions) -> None:
    versions.commit(1, 2, 3)
    versions.commit(1, 2, 3, is_repeated=True, count=5)
    assert versions.found_if_there(1, 2, 3) == {"version-twice": 1}


@pytest.mark.parametrize("is_abort", [True, False])
def test_a_commit_of_what_was_closed(versions: Versions, *, is_abort: bool) -> None:
    """By an abort, or by a higher version."""
    if is_abort:
        versions.abort()
    else:
        versions.join(4, version=1)
    versions.commit(1, 2, 3)
    assert versions.found_if_there(1, 2, 3) == {"zombie-end": 1}


def test_a_member_that_is_listed_in_two_ways(versions: Versions) -> None:
    """Such a history says nothing."""
    versions.commit(1, 2, kind=Type.INFO)
    versions.commit(1, kind=Type.INFO)
    with pytest.raises(BadHistory, match="in two ways"):
        judge(versions.events)
