"""Registers: made, changed, deleted once, and looked at afterwards."""

from __future__ import annotations

from collections import Counter
from random import Random

from jepsen_like.workloads.slots import GONE_MAX, Deed, Slots


def until(slots: Slots, name: str, wanted: Deed) -> None:
    for _ in range(10_000):
        if slots.deed(name, is_there=True) is wanted:
            return
    raise AssertionError(f"{wanted} never came")


def test_what_is_not_there_is_made() -> None:
    """Any process may try, as none knows of the others."""
    slots = Slots(Random(1), count=2)
    assert slots.current == ["register-1", "register-2"]
    assert slots.deed("register-1", is_there=False) is Deed.CREATE


def test_what_is_there_is_mostly_changed_and_confirmed() -> None:
    """One operation in fifty deletes, and once one does no other is done to the register."""
    slots = Slots(Random(1), count=1)
    kinds = Counter[Deed]()
    for _ in range(5000):
        kinds[slots.deed("register-1", is_there=True)] += 1
        slots.on_spared("register-1")
    assert 50 < kinds[Deed.DELETE] < 200
    assert kinds[Deed.CHANGE] > 2000
    assert kinds[Deed.CONFIRM] > 2000


def test_while_it_is_being_deleted_it_is_only_read() -> None:
    """Neither a second deletion nor another birth under the same name."""
    slots = Slots(Random(1), count=1)
    until(slots, "register-1", Deed.DELETE)
    assert {slots.deed("register-1", is_there=True) for _ in range(200)} == {Deed.CONFIRM}
    assert slots.deed("register-1", is_there=False) is Deed.NOTHING


def test_a_deletion_of_which_nobody_knows_may_be_tried_again() -> None:
    """It goes on with the same name."""
    slots = Slots(Random(1), count=1)
    until(slots, "register-1", Deed.DELETE)
    slots.on_spared("register-1")
    until(slots, "register-1", Deed.DELETE)


def test_the_deleted_is_replaced_and_remembered() -> None:
    """Another name takes its place; the old one is chosen now and then."""
    slots = Slots(Random(1), count=2)
    slots.on_deleted("register-1")
    assert (slots.current, slots.gone) == (["register-3", "register-2"], ["register-1"])
    chosen = Counter(slots.choose() for _ in range(1000))
    assert set(chosen) == {"register-1", "register-2", "register-3"}
    assert chosen["register-1"] < 150
    assert slots.deed("register-1", is_there=False) is Deed.NOTHING
    assert slots.deed("register-1", is_there=True) is Deed.CONFIRM


def test_only_the_last_ones_are_remembered() -> None:
    """A long run deletes many."""
    slots = Slots(Random(1), count=1)
    for _ in range(3 * GONE_MAX):
        slots.on_deleted(slots.current[0])
    assert len(slots.gone) == GONE_MAX


def test_no_value_comes_twice() -> None:
    """A register that shows a value tells who has written it."""
    slots = Slots(Random(1), count=1)
    assert [slots.new_value() for _ in range(3)] == [1, 2, 3]
