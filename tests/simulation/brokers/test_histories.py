"""What a world writes down: complete, in the format of real runs, and judged by their checkers.

The parts are asked one by one in a world that is never played; then a whole world is.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from jepsen_like.history.event import NEMESIS, NODE, RUN, Type, read_history
from jepsen_like.planted.patch import Calls
from tests.simulation.brokers.history_reader import Reader
from tests.simulation.brokers.history_runs import Label
from tests.simulation.brokers.ledger import ACKS_ALL, ANYWHERE, Outcome, Spot
from tests.simulation.brokers.planted_bugs import BUGS
from tests.simulation.brokers.world import World
from tests.simulation.planting import demand_called
from tests.simulation.raft.checks import Violation

if TYPE_CHECKING:
    from pathlib import Path

    from jepsen_like.history.event import Event
    from tests.simulation.brokers.ledger import Sent

TOPIC = "topic-0"


def make_world() -> World:
    """With one topic, and no programs."""
    world = World(4)
    world.on_topic(TOPIC, 0, world.plan.topics[0]._replace(partition_count=2), b"a" * 16)
    return world


def hand_in(world: World, value: bytes, *, partition: int = 0, after: Sent | None = None) -> Sent:
    """As the SDK does."""
    spot = Spot(TOPIC, partition)
    return world.ledger.on_hand_in(
        spot, value, acks=ACKS_ALL, line="", partition_count=2, after=after
    )


def deliver(world: World, sent: Sent, offset: int, *, partition: int = 0) -> None:
    world.ledger.on_delivered(sent, partition, offset, is_repeated=False, leader_epoch=0)


def told(events: list[Event]) -> list[tuple[Type, str, Any]]:
    return [(event.type, event.value["key"], event.value.get("offsets")) for event in events]


async def test_a_send_is_told_as_the_ledger_has_it() -> None:
    """One send is acknowledged, one fails, one is of unknown outcome."""
    world = make_world()
    sents = [
        world.ledger.on_send(Spot(TOPIC, 0), (value,), acks=ACKS_ALL, leader_epoch=0)
        for value in (b"a", b"b", b"c")
    ]
    world.ledger.on_acknowledged(sents[0], 7)
    world.ledger.on_failed(sents[1], "why")
    world.ledger.on_unknown(sents[2], is_stray=False)
    events = world.history.events()
    assert [event.index for event in events] == list(range(6))
    assert told(events[3:]) == [
        (Type.OK, "topic-0-0", [7]),
        (Type.FAIL, "topic-0-0", None),
        (Type.INFO, "topic-0-0", None),
    ]
    assert [event.process for event in events] == [0, 1, 2, 0, 1, 2]
    assert events[4].error == "why"


async def test_who_never_hears_of_an_outcome_sends_no_more() -> None:
    """The process of a send of unknown outcome is done; that of an acknowledged one goes on."""
    world, spot = make_world(), Spot(TOPIC, 0)
    for number in range(3):
        value = f"{number}".encode()
        sent = world.ledger.on_send(spot, (value,), acks=ACKS_ALL, leader_epoch=0)
        if number == 1:
            world.ledger.on_unknown(sent, is_stray=False)
        else:
            world.ledger.on_acknowledged(sent, number)
    assert [event.process for event in world.history.events()] == [0, 0, 0, 0, 1, 1]


async def test_a_stray_may_stand_in_every_life_of_its_topic() -> None:
    """The topic is made again while a send is under way: it may be in either."""
    world, spot = make_world(), Spot(TOPIC, 0)
    sent = world.ledger.on_send(spot, (b"a",), acks=ACKS_ALL, leader_epoch=0)
    world.on_topic(TOPIC, 1, world.topic_plans[TOPIC], b"b" * 16)
    world.ledger.on_unknown(sent, is_stray=True)
    reader = Reader(world.history, spot._replace(life=1))
    reader.ask(0)
    reader.get([[0, "a"]])
    events = world.history.events()
    assert told(events[:2]) == [(Type.INVOKE, "topic-0-0", None), (Type.INVOKE, "topic-0-0'", None)]
    assert told(events[2:4]) == [(Type.INFO, "topic-0-0", None), (Type.INFO, "topic-0-0'", None)]
    assert events[0].process == events[2].process != events[1].process == events[3].process
    world.history.judge()


async def test_where_the_sdk_has_put_a_record_is_known_in_the_end() -> None:
    """The key is where it was delivered; what was never seen is left out."""
    world = make_world()
    placed, lost = (hand_in(world, value, partition=ANYWHERE) for value in (b"a", b"b"))
    deliver(world, placed, 3, partition=1)
    world.ledger.on_unknown(lost, is_stray=False)
    assert told(world.history.events()) == [
        (Type.INVOKE, "topic-0-1", None),
        (Type.OK, "topic-0-1", [3]),
    ]


async def test_records_of_one_call_are_one_operation() -> None:
    """Their order within it is judged: the second one stands before the first."""
    world = make_world()
    first = hand_in(world, b"a")
    second = hand_in(world, b"b", after=first)
    deliver(world, first, 6)
    deliver(world, second, 5)
    assert told(world.history.events()) == [
        (Type.INVOKE, "topic-0-0", None),
        (Type.OK, "topic-0-0", [6, 5]),
    ]
    with pytest.raises(Violation, match="int-nonmonotonic-send"):
        world.history.judge()


async def test_a_call_is_told_record_by_record_where_copies_may_be_deleted() -> None:
    """Both were sent again, and only of one the first copy is still there."""
    world = make_world()
    first = hand_in(world, b"a")
    second = hand_in(world, b"b", after=first)
    for offset, sent in enumerate((first, second), 9):
        world.ledger.on_delivered(sent, 0, offset, is_repeated=True, leader_epoch=0)
    world.ledger.of(first.spot).deleted_to = 6
    reader = Reader(world.history, first.spot)
    reader.ask(6)
    reader.get([[6, "b"]])
    ended = [event for event in world.history.events() if event.type is Type.OK]
    assert told(ended[:2]) == [(Type.OK, "topic-0-0", [9]), (Type.OK, "topic-0-0", [10])]
    assert ended[0].process != ended[1].process
    world.history.judge()


async def test_who_reads_on_is_the_same_process_and_who_goes_elsewhere_another() -> None:
    """What lies between two stretches of reading was not skipped."""
    world = make_world()
    reader = Reader(world.history, Spot(TOPIC, 0))
    reader.ask(0)
    reader.get([[0, "a"], [1, "b"]])
    reader.ask(2)
    reader.miss("nobody there")
    reader.ask(2)
    reader.get([[2, "c"]])
    reader.ask(9)
    reader.get([])
    ended = [event for event in world.history.events() if event.type is not Type.INVOKE]
    assert [(event.process, event.f) for event in ended] == [
        (0, "assign"), (0, "poll"), (0, "poll"), (0, "poll"), (1, "assign"), (1, "poll"),
    ]  # fmt: skip
    assert [event.value["from"] for event in ended if event.f == "assign"] == ["beginning", "end"]


async def test_a_run_is_one_send_for_each_partition() -> None:
    """With all rows that its generation has there, by a process of its own; offsets where told."""
    world = make_world()
    spots = Spot(TOPIC, 0), Spot(TOPIC, 1)
    rows = {spots[0]: [b"a", b"b"], spots[1]: [b"c"]}
    runs = [world.history.on_run(Label("t0", 3), rows) for _ in range(2)]
    runs[0].on_row(spots[0], 1, 7)
    runs[0].on_end("broken off")
    runs[1].on_end()
    events = world.history.events()
    assert [(event.process, event.value["key"]) for event in events[:2]] == [
        (0, "topic-0-0"), (1, "topic-0-1"),
    ]  # fmt: skip
    assert {(event.value["name"], event.value["generation"]) for event in events[:4]} == {("t0", 3)}
    told = [(event.type, event.value["offsets"]) for event in events[4:]]
    assert told == [
        (Type.INFO, [None, 7]), (Type.INFO, [None]), (Type.OK, [None, None]), (Type.OK, [None]),
    ]  # fmt: skip
    world.history.judge()


async def test_what_is_stepped_over_ends_no_stretch_of_reading() -> None:
    """A fence is read past: the process goes on."""
    world = make_world()
    reader = Reader(world.history, Spot(TOPIC, 0))
    reader.skip(3)
    assert reader.following < 0
    reader.ask(0)
    reader.get([[0, "a"]])
    reader.skip(2)
    reader.ask(2)
    reader.get([[2, "b"]])
    polls = [event for event in world.history.events() if event.f == "poll"]
    assert {event.process for event in polls} == {0}


async def test_what_is_noted_one_by_one_is_one_poll() -> None:
    """Records of a consumer that iterates are told together."""
    world = make_world()
    reader = Reader(world.history, Spot(TOPIC, 0))
    reader.begin(from_beginning=False)
    for offset in (4, 5):
        reader.note(offset, f"{offset}")
    reader.flush()
    reader.flush()
    polls = [event for event in world.history.events() if event.f == "poll"]
    assert [event.type for event in polls] == [Type.INVOKE, Type.OK]
    assert polls[1].value["records"] == [["topic-0-0", [[4, "4"], [5, "5"]]]]


async def test_a_gap_that_nobody_allowed_is_a_violation() -> None:
    """A reader leaves out a record that was acknowledged."""
    world = make_world()
    for number in range(3):
        deliver(world, hand_in(world, f"{number}".encode()), number)
    reader = Reader(world.history, Spot(TOPIC, 0))
    reader.ask(0)
    reader.get([[0, "0"], [2, "2"]])
    with pytest.raises(Violation, match=r"lost-write, 1 times: .*'1'"):
        world.history.judge()


async def test_what_strikes_in_a_plot_is_over_at_its_end() -> None:
    """Two faults of one script, and the brokers that they hit."""
    world = make_world()
    with world.history.fault_span():
        world.history.on_struck("comeback", "topic-0-0 ['n3', 'n1']")
        world.history.on_struck("kill", ["n1"])
    events = world.history.events()
    assert [(event.type, event.f) for event in events] == [
        (Type.INVOKE, "comeback"), (Type.INVOKE, "kill"),
        (Type.INFO, "comeback"), (Type.INFO, "kill"),
    ]  # fmt: skip
    assert events[0].value["nodes"] == [1, 3]


async def test_who_leads_a_topic_that_no_client_knows_is_left_out() -> None:
    """The log's name says of which topic it is."""
    world = make_world()
    for topic_id in (b"a" * 16, b"z" * 16):
        world.history.on_leads("n2", f"{TOPIC}-{topic_id.hex()}/Partition-1", 5)
    (event,) = world.history.events()
    assert (event.node, event.value) == (2, {"key": "topic-0-1", "epoch": 5})


def test_the_history_of_a_world_is_complete(tmp_path: Path) -> None:
    """Clients, faults, phases and every log of a played world stand in its file."""
    path = tmp_path / "history.jsonl"
    world = World(4, seconds=3.0, history_file=path)
    world.play()
    events = read_history(path)
    assert [event.index for event in events] == list(range(len(events)))
    assert all(before.time <= after.time for before, after in pairwise(events))
    _judge_clients(world, [event for event in events if isinstance(event.process, int)])
    phases = [event.value for event in events if event.process == RUN]
    assert phases == ["load", "faults", "heal", "final", "end"]
    faults = Counter(event.type for event in events if event.process == NEMESIS)
    assert faults[Type.INVOKE] == faults[Type.INFO]
    kept = {(event.value["key"], event.node) for event in events if event.f == "replica"}
    plans = [(spot, world.topic_plans[spot.topic]) for spot in world.spots()]
    assert len(kept) == sum(plan.replication_factor for _, plan in plans)
    assert {event.f for event in events if event.process == NODE} == {"leads", "replica"}


def _judge_clients(world: World, events: list[Event]) -> None:
    """As many as the ledger has, and in each log what was acknowledged."""
    ledger = world.ledger
    acked = [event.value for event in events if event.f == "send" and event.type is Type.OK]
    values = [(one["key"], value) for one in acked for value in one["values"]]
    sents = {id(sent): sent for one in ledger.partitions.values() for sent in one.sent.values()}
    done = [sent for sent in sents.values() if sent.outcome is Outcome.OK]
    assert sorted(values) == sorted(
        (str(sent.spot), value.decode()) for sent in done for value in sent.values
    )
    polls = [event.value for event in events if event.f == "poll" and event.type is Type.OK]
    records = [record for one in polls for _, found in one["records"] for record in found]
    assert 0 < len(records) <= ledger.reads


@pytest.mark.teeth
@pytest.mark.parametrize(
    ("bug", "finding"),
    [
        ("ack_before_followers_hold", "inconsistent-offsets"),
        ("numbers_are_not_looked_at", "duplicate"),
        ("the_rest_of_a_batch_is_dropped", "poll-skip"),
        ("a_fence_begins_the_generation_anew", "rerun-duplicate"),
    ],
)
def test_the_checkers_find_planted_bugs_by_themselves(bug: str, finding: str) -> None:
    """In one of its worlds: up to where the ledger complains, the history shows it, too."""
    seeds, calls = BUGS.cases[bug].seeds, Calls()
    assert any(_complaint_of_checkers(bug, seed, calls).startswith(finding) for seed in seeds)
    demand_called(bug, calls)


def _complaint_of_checkers(bug: str, seed: int, calls: Calls) -> str:
    case = BUGS.cases[bug]
    world = World(seed, seconds=case.seconds, kinds=case.kinds)
    with BUGS.planted(bug, calls), suppress(Violation):
        world.play()
    try:
        world.history.judge()
    except Violation as found:
        return str(found)
    return ""
