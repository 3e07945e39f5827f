"""Planted bugs: one that nobody calls makes tests and commands red, and says what it patches."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from jepsen_like.planted.patch import CALLED, PLANTED, Calls, ForGood, places_told
from tests.simulation import planting
from tests.simulation.planting import Case, InVain, Patch, PlantedBugs, demand_called, planted

if TYPE_CHECKING:
    from collections.abc import Iterator


def rule() -> str:
    return "right"


class Home:
    """Like a module in which a rule stands."""

    rule = staticmethod(rule)


class Caller:
    """Like a module that has imported the rule by value."""

    rule = staticmethod(rule)


class World:
    """Calls its own rule, and breaks a promise if that is wrong."""

    def __init__(self, seed: int, *, seconds: float, kinds: tuple[str, ...]) -> None:
        self._seed = seed

    def play(self) -> None:
        assert Caller.rule() == "right", f"world {self._seed}"


def patch_the_caller(patch: Patch) -> None:
    patch.setattr(Caller, "rule", lambda: "wrong")


def patch_where_it_stands(patch: Patch) -> None:
    patch.setattr(Home, "rule", lambda: "wrong")


def patch_both(patch: Patch) -> None:
    patch_where_it_stands(patch)
    patch_the_caller(patch)


BUGS = PlantedBugs(
    World,  # type: ignore[arg-type]  # no whole world
    {
        bug: Case((1, 2), (), 1.0)
        for bug in (patch_the_caller, patch_where_it_stands, patch_both)
    },
)  # fmt: skip


def test_a_bug_that_is_called_is_caught() -> None:
    assert BUGS.is_caught("patch_the_caller")
    assert Caller.rule() == "right"


@pytest.mark.parametrize("bug", ["patch_where_it_stands", "patch_both"])
def test_whatever_nobody_calls_is_in_vain(bug: str) -> None:
    """Also where something else of the same bug has been caught."""
    with pytest.raises(InVain, match=f"{bug} is planted in vain: nothing called Home.rule$"):
        BUGS.is_caught(bug)


@pytest.mark.parametrize(("bug", "status"), [("patch_the_caller", 0), ("patch_both", 1)])
def test_the_command_is_red_as_well(
    bug: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["planted_bugs", "--bug", bug, "--seeds", "2"])
    with pytest.raises(SystemExit) as ended:
        planting.main(BUGS, "Bugs.")
    assert ended.value.code == status
    assert ("in vain: nothing called Home.rule" in capsys.readouterr().out) == bool(status)


class Thing:
    """One attribute of each sort."""

    def method(self) -> str:
        return "method"

    async def task(self) -> str:
        return "task"

    def numbers(self) -> Iterator[int]:
        yield 1

    @property
    def told(self) -> str:
        return "told"

    @classmethod
    def of_class(cls) -> str:
        return "class"

    @staticmethod
    def of_nobody() -> str:
        return "nobody"

    limit = 1


def change_all(patch: Patch) -> None:
    """Each says by what it was called."""

    async def task(self: Thing) -> str:
        return f"task of {self.limit}"

    def numbers(self: Thing) -> Iterator[int]:
        yield self.limit

    patch.setattr(Thing, "method", lambda self: f"method of {self.limit}")
    patch.setattr(Thing, "task", task)
    patch.setattr(Thing, "numbers", numbers)
    patch.setattr(Thing, "told", property(lambda self: f"told by {self.limit}"))
    patch.setattr(Thing, "of_class", classmethod(lambda cls: cls.__name__))
    patch.setattr(Thing, "of_nobody", partial(str, "alone"))
    patch.setattr(Thing, "limit", 7)


async def test_every_sort_of_function_is_counted_and_goes_on_working() -> None:
    with planted(change_all) as calls:
        assert len(calls.missing) == 6
        thing = Thing()
        assert (thing.method(), await thing.task(), [*thing.numbers()]) == (
            "method of 7",
            "task of 7",
            [7],
        )
        assert (thing.told, Thing.of_class(), thing.of_nobody()) == ("told by 7", "Thing", "alone")
    demand_called("change_all", calls)
    assert {*calls.counts.values()} == {1}


def test_constants_are_told_apart() -> None:
    """Nobody knows whether they are looked at."""
    with planted(change_all) as calls:
        pass
    assert calls.constants == {"Thing.limit"}


def test_what_is_patched_for_a_while_counts_as_well() -> None:
    def change_one(patch: Patch) -> None:
        def method(self: Thing) -> Any:
            with patch.context() as inner:
                inner.setattr(self, "of_nobody", lambda: "changed")
                return self.of_nobody() if self.limit else None

        patch.setattr(Thing, "method", method)

    thing, calls = Thing(), Calls()
    with planted(change_one, calls):
        assert thing.method() == "changed"
        assert thing.of_nobody() == "nobody"
    assert calls.counts == {"Thing.method": 1, "Thing.of_nobody": 1}
    with planted(change_one, calls):
        thing.limit = 0
        assert thing.method() is None
    assert calls.counts == {"Thing.method": 2, "Thing.of_nobody": 1}


def test_a_process_that_lives_with_its_bug_tells_what_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Other(Thing):
        """Nothing takes its attributes back."""

    bug = ForGood()
    bug.setattr(Other, "method", lambda self: "changed")
    bug.setattr(Other, "of_nobody", staticmethod(lambda: "changed"))
    assert [Other().method() for _ in range(3)] == ["changed"] * 3
    said = capsys.readouterr().err
    places = {f"{Other.__qualname__}.{name}" for name in ("method", "of_nobody")}
    assert said.count("\n") == 3
    assert places_told(PLANTED, said) == places
    assert places_told(CALLED, said) == {f"{Other.__qualname__}.method"}
    assert Other().of_nobody() == "changed"
    assert places_told(CALLED, said + capsys.readouterr().err) == places
