"""Groups for assignors: members by hand, members by chance, and what a plan gives to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

from raftmq.client.group.assignors.assignor import Subscribed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan

TOPICS = ("a", "b", "c", "d")


def member(
    name: str,
    topics: str | Iterable[str] = "a",
    owned: str = "",
    generation: int = 1,
    **fields: object,
) -> Subscribed:
    """`owned`: as in "a0 a1 b0"; topics have names of one letter."""
    keys = frozenset((each[0], int(each[1:])) for each in owned.split())
    found = Subscribed(name, frozenset(topics), keys, generation if keys else -1, is_holding=True)
    return found._replace(**fields)  # type: ignore[arg-type]


def texts(plan: Plan) -> dict[str, str]:
    """The other way: sorted, as in "a0 a1 b0"."""
    return {
        name: " ".join(f"{topic}{number}" for topic, number in sorted(keys))
        for name, keys in plan.items()
    }


def keys_of(partitions: Mapping[str, int], members: Sequence[Subscribed]) -> set[Key]:
    """Everything that somebody has to get."""
    subscribed = frozenset[str]().union(*[one.topics for one in members])
    return {
        (topic, number)
        for topic, count in partitions.items()
        if topic in subscribed
        for number in range(count)
    }


def owning(members: Iterable[Subscribed], plan: Plan, generation: int) -> list[Subscribed]:
    """The same members, once they have got their parts."""
    return [
        one._replace(owned=frozenset(plan[one.member_id]), generation=generation) for one in members
    ]


PARTITIONS_MAX = 7
# Numbers stand for sets, as drawing sets is slow. Some claims are of partitions that a topic does
# not have: it may have been made anew with fewer.
_KEYS = [(topic, number) for topic in TOPICS for number in range(PARTITIONS_MAX + 1)]
_SOME_TOPICS = st.integers(1, (1 << len(TOPICS)) - 1)
_MEMBERS = st.lists(
    st.tuples(
        st.integers(0, 30),  # its name
        _SOME_TOPICS,
        st.integers(0, (1 << len(_KEYS)) - 1),  # its claims
        st.integers(0, 3),  # of which generation
        st.booleans(),  # whether it holds them
        st.booleans(),  # whether it is static
    ),
    min_size=1,
    max_size=7,
    unique_by=lambda one: one[0],
)
COUNTS = st.tuples(*[st.integers(0, PARTITIONS_MAX)] * len(TOPICS)).map(
    lambda counts: dict(zip(TOPICS, counts, strict=True))
)


def groups(*, is_uniform: bool = False) -> st.SearchStrategy[list[Subscribed]]:
    """Members that claim whatever they like, also the same as others."""
    if is_uniform:
        return st.builds(_group, _MEMBERS, _SOME_TOPICS)
    return _MEMBERS.map(_group)


def _group(
    drawn: list[tuple[int, int, int, int, bool, bool]], common: int | None = None
) -> list[Subscribed]:
    return [
        Subscribed(
            f"m{name:02}",
            frozenset(_chosen(TOPICS, topics if common is None else common)),
            frozenset(_chosen(_KEYS, claims)),
            generation,
            is_holding=is_holding,
            instance_id=f"i{40 - name}" if is_static else None,
        )
        for name, topics, claims, generation, is_holding, is_static in drawn
    ]


T = TypeVar("T")


def _chosen(of: Sequence[T], bits: int) -> list[T]:
    return [each for place, each in enumerate(of) if bits >> place & 1]
