"""Whether a cluster was well again once nothing was broken any more."""

from __future__ import annotations

import pytest

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.script import Script

SILENCE = (None,) * 4


def history(*looks: int | None, before: int | None = None, is_to_end: bool = True) -> Script:
    """Looks after the faults, at two partitions, and one before; None: nobody answered."""
    script = Script()
    if before is not None:
        script.whole(before)
    script.phase("heal")
    for count in looks:
        script.look(count)
    if is_to_end:
        script.phase("final")
    return script


def count_of(script: Script) -> int:
    return script.finding("not-healed").count


def test_a_replica_that_never_comes_back() -> None:
    """Each look before the last reads finds a partition without one of its replicas."""
    assert count_of(history(0, 1, 1)) == 1


@pytest.mark.parametrize("looks", [(2,), (1, 2), (), (None, 2), (2, None), (2, 1)])
def test_a_cluster_that_heals_or_that_nobody_looks_at(looks: tuple[int | None, ...]) -> None:
    """All are in sync at some time; or nothing is known; one look without an answer is chance."""
    assert count_of(history(*looks)) == 0


@pytest.mark.parametrize("looks", [(), (None,), (2, *SILENCE)])
def test_a_cluster_that_does_not_say_any_more_how_it_is(looks: tuple[int | None, ...]) -> None:
    """It did before the faults, so somebody asked."""
    script = history(*looks, before=2)
    assert count_of(script) == 1
    assert "nobody said any more" in script.finding("not-healed").examples[0]


def test_a_run_that_was_killed_while_it_healed() -> None:
    """It may have been whole later."""
    assert count_of(history(1, is_to_end=False)) == 0


def sent_after(*kinds: Type, is_whole: bool = True) -> Script:
    """How sends ended that began when all replicas were in sync, or not yet."""
    script = history(2 if is_whole else 1, is_to_end=False)
    for value, kind in enumerate(kinds):
        script.send([value], process=value, kind=kind)
    script.whole(2)
    script.phase("final")
    return script


def test_a_key_that_takes_nothing_though_all_its_replicas_are_in_sync() -> None:
    """Nothing is lost and nothing is wrong, but it is of no use; the sentence says since when."""
    script = sent_after(Type.INFO, Type.FAIL)
    assert script.found() == {"not-healed": 1}
    assert script.finding("not-healed").examples == [
        "key 'k': all replicas were in sync from event 1 on, but of 2 sends since then, the first "
        "in event 2, none ended well"
    ]


def test_a_send_that_goes_wrong_beside_others() -> None:
    """That is chance."""
    assert count_of(sent_after(Type.INFO, Type.OK)) == 0


def test_a_send_that_began_before_all_were_in_sync() -> None:
    """It may have waited for that in vain."""
    assert count_of(sent_after(Type.INFO, is_whole=False)) == 0
