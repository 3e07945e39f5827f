"""What processes do next, and what is still to be looked at."""

from __future__ import annotations

from collections import Counter
from random import Random

from jepsen_like.workloads.generator import BEGINNING, Assign, Crash, Generator, Send
from jepsen_like.workloads.keys import Keys
from jepsen_like.workloads.seen import Seen


def a_generator(seed: int = 1, *, seen: Seen | None = None) -> Generator:
    keys = Keys(Random(seed), matrix=("all",), active_max=4, topics_max=2)
    for _ in range(2):
        topic = keys.next_topic()
        assert topic is not None
        keys.on_made(topic)
    return Generator(Random(seed), keys, seen or Seen(), now=0.0)


def test_the_same_seed_does_the_same() -> None:
    """Two generators of one seed give the same operations, those of another seed others."""
    first, second, third = a_generator(), a_generator(), a_generator(2)
    ours = [first.next(now=0) for _ in range(200)]
    assert ours == [second.next(now=0) for _ in range(200)]
    assert ours != [third.next(now=0) for _ in range(200)]


def test_half_send_half_poll_few_assign() -> None:
    """Of thousands of operations about one in 64 replaces what is read."""
    generator = a_generator()
    kinds = Counter(type(generator.next(now=0)).__name__ for _ in range(3200))
    assert 25 < kinds["Assign"] < 80
    assert abs(kinds["Send"] - kinds["Poll"]) < 300
    assert kinds["Crash"] == 0


def test_sends_carry_few_new_values() -> None:
    """One to eight of them, and none twice."""
    generator = a_generator()
    sends = [one for _ in range(500) if isinstance(one := generator.next(now=0), Send)]
    assert {len(send.values) for send in sends} == set(range(1, 9))
    values = [(send.key, value) for send in sends for value in send.values]
    assert len(values) == len(set(values))


def test_a_process_crashes_when_its_time_has_come() -> None:
    """The time is drawn; an hour later it is over for any of them."""
    assert isinstance(a_generator().next(now=3600.0), Crash)


def test_it_begins_with_something_to_read() -> None:
    """The first keys are drawn like any others: each once."""
    first = a_generator().first()
    assert first.keys
    assert list(first.keys) == sorted(set(first.keys))


def test_what_nobody_has_read_is_read_from_the_beginning() -> None:
    """An old key was acknowledged and never polled: a part of the assignments brings it up."""
    seen = Seen()
    seen.on_sent("old-1-0", [3, 4])
    generator = a_generator(seen=seen)
    found = [one for _ in range(3_000) if isinstance(one := generator.next(now=0), Assign)]
    with_old = [one for one in found if "old-1-0" in one.keys]
    assert 0.15 < len(with_old) / len(found) < 0.55
    assert all(one.start == BEGINNING for one in with_old)
    assert any(one.start != BEGINNING for one in found)


def test_seen_knows_who_is_behind() -> None:
    """Acknowledged up to 5, polled up to 4: behind until 5 was polled."""
    seen = Seen()
    seen.on_sent("k", [4, None, 5])
    seen.on_polled("k", 4)
    assert seen.behind() == ["k"]
    seen.on_polled("k", 5)
    assert (seen.behind(), seen.highest("k"), seen.highest("other")) == ([], 5, -1)


def test_a_send_of_which_nothing_is_known_leaves_nobody_behind() -> None:
    """No offset was told."""
    seen = Seen()
    seen.on_sent("k", [None])
    assert (seen.behind(), seen.highest("k")) == ([], -1)
