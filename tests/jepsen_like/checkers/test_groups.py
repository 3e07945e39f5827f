"""What groups may not do, and what looks like it and is allowed, by hand."""

from __future__ import annotations

import pytest

from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.verdict import OF_GROUPS, judge
from jepsen_like.history.event import BadHistory, Type
from tests.jepsen_like.checkers.group_script import GroupScript
from tests.jepsen_like.checkers.script import Script

# -- handed out to nobody ----------------------------------------------------------------------


def test_what_nobody_was_handed_out() -> None:
    """Acknowledged, and in nobody's hands when all is over; before that it may be late."""
    script = GroupScript("g/1")
    script.send_many(3)
    script.take("g/1", [0, 1])
    assert script.found() == {}
    script.phase("final")
    assert script.found() == {"group-unseen": 1}
    assert script.finding("group-unseen").examples == [
        "group 'g', key 'k', value 2, acknowledged at offset 2 in event 4: no member was ever "
        "handed it out"
    ]


def test_what_few_acknowledged_may_be_gone() -> None:
    """It is counted."""
    script = GroupScript("g/1")
    script.send([0], [0], acks=1)
    script.leads(1, 1)
    script.leads(2, 2)
    script.phase("final")
    assert script.found() == {}
    assert script.finding("group-unseen").figures["unseen lightly"] == 1


def test_what_was_committed_before_it_was_handed_out_may_be_left_out() -> None:
    """A member dies between the two; what lies beyond what was committed must come."""
    script = GroupScript("g/1", commit="before")
    script.send_many(4)
    script.commit("g/1", 2, kind=Type.INFO)
    script.tell("g/1", "crash")
    script.phase("final")
    assert script.found() == {"group-unseen": 2}
    assert script.finding("group-unseen").figures["left out"] == 2


# -- handed out twice --------------------------------------------------------------------------


def moved(how: str, *, commit: str = "batch", offset: int = 0) -> GroupScript:
    """A partition goes from one to the other, who is handed out what the first one had."""
    script = GroupScript("g/1", "g/2", commit=commit)
    script.send_many(2)
    script.take("g/1", [0, 1])
    if how == "crash":
        script.tell("g/1", "crash")
    elif how == "leave":
        script.tell("g/1", "leave")
    elif how:
        script.take_away("g/1", how=how)
    script.assign_to("g/2", 2)
    script.take("g/2", [offset])
    return script


@pytest.mark.parametrize("how", ["revoked", "lost", "crash", "leave"])
def test_what_was_not_done_comes_again(how: str) -> None:
    """Whoever had it has it no more: that is what groups promise."""
    script = moved(how)
    assert script.found() == {}
    assert script.finding("group-duplicate").figures == {"handed out again": 1}


def test_with_commits_before_the_work_nothing_comes_again() -> None:
    """However the first one ended."""
    script = moved("crash", commit="before")
    assert script.found() == {"group-duplicate": 1}
    (example,) = script.finding("group-duplicate").examples
    assert "offset 0 was handed out in event 7 (g/1 had it from event 3 on" in example


def test_what_is_told_too_late_to_be_lost_is_allowed() -> None:
    """Somebody is put out, and hears of it after the other one has begun."""
    script = moved("")
    script.take_away("g/1", how="lost")
    assert script.found() == {}


def test_nobody_gets_what_another_one_still_has() -> None:
    """Revoked only afterwards: too late, even if he was handed out nothing meanwhile."""
    script = moved("")
    script.take_away("g/1")
    assert script.found() == {"overlap": 1, "group-duplicate": 1}
    script = moved("", offset=1)
    assert "overlap" in script.found()


# -- two owners --------------------------------------------------------------------------------


def test_a_member_that_goes_on_after_another_one_has_begun() -> None:
    """He lost it, and was handed out more of it."""
    script = GroupScript("g/1", "g/2")
    script.send_many(3)
    script.assign_to("g/2", 2)
    script.take("g/1", [0])
    script.take_away("g/1", how="lost")
    assert script.found() == {"overlap": 1}
    assert (
        "offset 0 was handed out in event 8 to one of two"
        in (script.finding("overlap").examples[0])
    )


def test_what_was_asked_for_before_and_came_before() -> None:
    """In his hands already when the other one is told; nothing is wrong."""
    script = GroupScript("g/1", "g/2")
    script.send_many(3)
    script.take("g/1", [0])
    script.take_away("g/1", how="lost")
    script.assign_to("g/2", 2)
    script.take("g/2", [0, 1])
    assert script.found() == {}


def test_what_a_member_was_never_given() -> None:
    """Handed out nevertheless; so is what comes after he has given it up."""
    script = GroupScript("g/1")
    script.send_many(3)
    script.take("g/1", [0], key="j")
    assert script.found() == {"overlap": 1, "unexpected-read": 1}
    script = GroupScript("g/1")
    script.send_many(3)
    script.take_away("g/1")
    script.take("g/1", [0])
    assert script.found() == {"overlap": 1}


def test_the_same_member_may_get_it_back() -> None:
    """Lost, heard of late, and given to him again in a later generation."""
    script = GroupScript("g/1")
    script.send_many(3)
    script.take_away("g/1", how="lost")
    script.assign_to("g/1", 3)
    script.take("g/1", [0, 1])
    assert script.found() == {}


# -- order -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("takes", "count"),
    [([[0, 1], [2]], 0), ([[0], [2]], 1), ([[0, 2]], 1), ([[0, 1], [1]], 1), ([[1, 0]], 1)],
)
def test_records_come_in_order(takes: list[list[int]], count: int) -> None:
    """To one who has the partition all the time: none is left out, none comes again."""
    script = GroupScript("g/1")
    script.send_many(4)
    for offsets in takes:
        script.take("g/1", offsets)
    assert script.found().get("group-order", 0) == count


def test_a_member_begins_where_the_group_has_stopped() -> None:
    """Neither before, as somebody has done that, nor behind, as nobody has."""
    for offset, count in ((2, 0), (1, 1), (3, 1)):
        script = GroupScript("g/1", "g/2")
        script.send_many(4)
        script.commit("g/1", 2)
        script.take_away("g/1")
        script.fetch("g/2", 2)
        script.assign_to("g/2", 2)
        script.take("g/2", [offset])
        assert script.found().get("group-order", 0) == count
    assert (
        "g/2 had it from event 11 on, generation 2 and began at 2"
        in (script.finding("group-order").examples[0])
    )


def test_who_hears_of_nothing_begins_at_the_beginning() -> None:
    """The group has committed nothing, and reads everything."""
    script = GroupScript("g/1", "g/2")
    script.send_many(3)
    script.take_away("g/1")
    script.fetch("g/2", None)
    script.assign_to("g/2", 2)
    script.take("g/2", [1])
    assert script.found() == {"group-order": 1}


# -- offsets -----------------------------------------------------------------------------------


def test_committed_offsets_do_not_go_back() -> None:
    """A commit of less, and a fetch of less, each after the other has ended."""
    script = GroupScript("g/1")
    script.commit("g/1", 5)
    script.commit("g/1", 3)
    assert script.found() == {"commit-back": 1}
    script.fetch("g/2", 3)
    assert script.found() == {"commit-back": 2}


def test_what_was_committed_in_vain_is_given_back() -> None:
    """Committed first, and not handed out, as the partition is revoked: by the same member."""
    script = GroupScript("g/1", commit="before")
    script.send_many(6)
    script.commit("g/1", 3)
    script.take("g/1", [0, 1, 2])
    script.commit("g/1", 5)
    late = script.begin_fetch("g/2")
    script.commit("g/1", 3)
    script.end_fetch("g/2", late, 5)
    script.fetch("g/2", 3)
    assert script.found() == {}
    script.fetch("g/2", 2)
    assert "commit-back" in script.found()


@pytest.mark.parametrize("kind", [Type.OK, Type.INFO])
def test_what_may_have_been_committed_is_given_back(kind: Type) -> None:
    """Nobody knows how the first attempt ended, and the group has dealt anew meanwhile."""
    script = GroupScript("g/1", commit="before")
    script.send_many(6)
    script.commit("g/1", 5, kind=kind)
    script.fetch("g/2", 5)
    script.commit("g/1", 3, 2)
    script.fetch("g/2", 3)
    assert script.found() == {}


@pytest.mark.parametrize(
    ("commit", "taken", "kind"),
    [("before", [3, 4], Type.OK), ("batch", [], Type.OK), ("before", [], Type.FAIL)],
)
def test_nothing_is_given_back_that_was_handed_out(
    commit: str, taken: list[int], kind: Type
) -> None:
    """Nor where records are handed out before the commit, nor after one that was refused."""
    script = GroupScript("g/1", commit=commit)
    script.send_many(6)
    script.commit("g/1", 3)
    script.take("g/1", [0, 1, 2])
    script.commit("g/1", 5, kind=kind)
    for offset in taken:
        script.take("g/1", [offset])
    script.fetch("g/2", 5)
    script.commit("g/1", 3)
    assert "commit-back" in script.found()


def test_nothing_is_given_back_by_others() -> None:
    """Nor by the same member, once it has lost the partition and got it again."""
    script = GroupScript("g/1", commit="before")
    script.send_many(6)
    script.commit("g/1", 5)
    script.take_away("g/1")
    script.assign_to("g/1", 2)
    script.commit("g/1", 3, 2)
    assert script.found()["commit-back"] == 1


def test_commits_beside_each_other_have_no_order() -> None:
    """Two attempts that overlap, and one that was refused."""
    script = GroupScript("g/1")
    first, second = script.begin_commit("g/1", 5), script.begin_commit("g/1", 3)
    script.end_commit("g/1", first)
    script.end_commit("g/1", second)
    script.commit("g/1", 1, kind=Type.FAIL)
    assert script.found() == {}


def test_a_fetch_shows_what_was_committed() -> None:
    """Not what was there before it; that is another order than any."""
    script = GroupScript("g/1")
    script.commit("g/1", 5)
    script.fetch("g/2", None)
    assert script.found() == {"offset-linearizable": 1, "commit-back": 1}


def test_a_commit_of_which_nobody_knows_may_be_seen_late() -> None:
    """Or never; but not be gone again once somebody has seen it."""
    script = GroupScript("g/1")
    script.commit("g/1", 5, kind=Type.INFO)
    script.begin_commit("g/1", 7)
    script.fetch("g/2", None)
    script.fetch("g/2", 5)
    script.fetch("g/2", 7)
    assert script.found() == {}
    script.fetch("g/2", 5)
    assert "offset-linearizable" in script.found()


def test_the_same_offset_is_committed_again_and_again() -> None:
    """By several, with outcomes that nobody knows: a verdict all the same."""
    script = GroupScript("g/1")
    for offset in range(30):
        for _ in range(3):
            script.commit("g/1", offset, kind=Type.INFO)
        script.fetch("g/2", offset)
    assert script.found() == {}
    assert script.finding("offset-linearizable").figures["without verdict"] == 0


@pytest.mark.parametrize(("kind", "count"), [(Type.OK, 1), (Type.FAIL, 0), (Type.INFO, 0)])
def test_an_old_generation_commits_no_more(kind: Type, count: int) -> None:
    """Another member was told of the next one before the commit began."""
    script = GroupScript("g/1", "g/2")
    script.take_away("g/1", how="lost")
    script.assign_to("g/2", 2)
    script.commit("g/1", 5, 1, kind=kind)
    assert script.found().get("zombie-commit", 0) == count


def test_a_commit_that_began_before_may_end_after() -> None:
    """It was in line when the group went on; whoever is in charge from outside has none."""
    script = GroupScript("g/1", "g/2")
    number = script.begin_commit("g/1", 5)
    script.take_away("g/1")
    script.assign_to("g/2", 2)
    script.end_commit("g/1", number)
    script.commit("admin", 6, -1)
    assert script.found() == {}


# -- the rest ----------------------------------------------------------------------------------


def test_what_members_read_is_read() -> None:
    """Nobody sent it: members are readers like others."""
    script = GroupScript("g/1")
    script.send([0], [0])
    script.take("g/1", [0, 1])
    assert script.found() == {"unexpected-read": 1}


def test_a_group_that_did_too_little() -> None:
    """It has committed nothing, and was dealt out once."""
    script = GroupScript("g/1")
    script.send_many(1)
    script.take("g/1", [0])
    verdict = judge(script.events, Demands(generations_min=2))
    assert verdict.reasons == [
        "group 'g' has committed nothing",
        "group 'g' had 1 generations, 2 are wanted",
    ]
    assert verdict.figures["records handed out to groups"] == 1


def test_without_groups_nobody_looked() -> None:
    """And it is said, of each kind."""
    script = Script()
    script.send_many(2)
    assert judge(script.events).not_looked_at >= {*OF_GROUPS}
    assert judge(GroupScript().events).not_looked_at.isdisjoint(OF_GROUPS)


def test_what_is_no_history_of_groups() -> None:
    """Somebody ends what nobody began; a member of no group."""
    script = GroupScript("g/1")
    script.end_commit("g/1", 99)
    with pytest.raises(BadHistory, match="'commit' is not of the form"):
        judge(script.events)
    script = GroupScript()
    script.assign_to("g/1")
    with pytest.raises(BadHistory, match="'rebalance' is not of the form"):
        judge(script.events)
