"""`Admin`: moves that are planned, taken back and listed, and replication factors (A10.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raftmq.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    InvalidUpdateVersion,
    OutcomeUnknown,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from raftmq.wire.messages.moves import (
    ListMoves,
    ListMovesReply,
    MoveCursor,
    MovePartitions,
    MovePartitionsReply,
)
from raftmq.wire.messages.topics import DescribeLogs
from tests.unit.client.administration.bureau import LOST, open_bureau
from tests.unit.client.administration.planned_moves import UNCERTAIN

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import PartitionDetails
    from tests.unit.client.administration.bureau import Bureau


def fill(bureau: Bureau) -> None:
    """Topic "u" of three partitions on brokers 1 and 2, each with 800 bytes."""
    topic = bureau.world.add_topic("u", 1, 2, 1)
    for number, partition in enumerate(topic.partitions):
        pair = (partition.leader, 3 - partition.leader)
        bureau.replicas["u", number] = pair, pair
        partition.end_offset = 80


# -- plans -------------------------------------------------------------------------------------


async def test_moves_are_planned(autojump_clock: MockClock) -> None:
    """Of several topics in one request; the answer says from where to where."""
    async with open_bureau(fill, brokers=4) as (bureau, admin):
        first, second = await admin.move_partitions({("u", 2): [4, 1], ("t", 0): (3,)})
        assert (first.topic, first.partition) == ("u", 2)
        assert (first.replicas, first.target, first.error) == ((1, 2), (4, 1), None)
        assert (second.topic, second.replicas, second.target) == ("t", (1,), (3,))
        assert bureau.count(MovePartitions) == 1
        assert {key: row.target for key, row in bureau.moves.rows.items()} == {
            ("u", 2): (4, 1), ("t", 0): (3,),
        }  # fmt: skip
        await admin.move_partitions({("u", 2): [3, 1]})
        assert bureau.moves.rows["u", 2].target == (3, 1)


async def test_each_partition_has_an_error_of_its_own(autojump_clock: MockClock) -> None:
    """A broker that there is not; the other one is planned."""
    async with open_bureau(fill) as (bureau, admin):
        refused, planned = await admin.move_partitions({("u", 0): [1, 9], ("u", 1): [1]})
        assert isinstance(refused.error, InvalidReplicaAssignment)
        assert str(refused.error) == "u-0: replicas [1, 9]: there is no broker 9"
        assert (planned.error, [*bureau.moves.rows]) == (None, [("u", 1)])


@pytest.mark.parametrize(
    ("moves", "error", "told"),
    [
        ([("t", 0)], TypeError, "expected a mapping"),
        ({}, InvalidRequest, "no partition given"),
        ({"t": [1]}, TypeError, "expected a pair of topic and number"),
        ({("t", "0"): [1]}, TypeError, "expected int"),
        ({("t", -1): [1]}, InvalidRequest, "counted from 0"),
        ({("a/b", 0): [1]}, InvalidTopic, "allowed are"),
        ({("t", 0): 1}, TypeError, "expected a list of broker ids"),
        ({("t", 0): "12"}, TypeError, "expected a list of broker ids"),
        ({("t", 0): ["1"]}, TypeError, "expected int"),
        ({("t", 0): []}, InvalidReplicaAssignment, "0 brokers: allowed 1 to 16"),
        ({("t", 0): range(17)}, InvalidReplicaAssignment, "17 brokers: allowed 1 to 16"),
        ({("t", 0): [2, 1, 2]}, InvalidReplicaAssignment, "twice"),
        ({("t", 0): [-1]}, InvalidReplicaAssignment, "begin at 0"),
        ({("t", 0): [1], ("no", 0): [1]}, UnknownTopicOrPartition, "no topic 'no'"),
        ({("t", 7): [1]}, UnknownTopicOrPartition, "t has partitions 0 to 0, not 7"),
    ],
)
async def test_what_is_refused_here(
    moves: Any, error: type[Exception], told: str, autojump_clock: MockClock
) -> None:
    """Nothing is sent."""
    async with open_bureau() as (bureau, admin):
        with pytest.raises(error, match=told):
            await admin.move_partitions(moves)
        assert bureau.count(MovePartitions) == 0


async def test_asked_again(autojump_clock: MockClock) -> None:
    """The controller was not reached, then an answer is lost: the plan takes its own place."""
    async with open_bureau(fill) as (bureau, admin):
        bureau.errors = [ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, LOST]
        planned = await admin.move_partitions({("u", 0): [2], ("u", 1): [1]})
        assert [one.error for one in planned] == [None, None]
        assert bureau.count(MovePartitions) == 3


async def test_what_is_uncertain_is_asked_for_again(autojump_clock: MockClock) -> None:
    """And nothing else, whether it was carried out or not."""
    async with open_bureau(fill) as (bureau, admin):
        late = ErrorCode.REQUEST_TIMED_OUT
        bureau.errors = [UNCERTAIN, ErrorCode.NONE, late, ErrorCode.NOT_CONTROLLER, UNCERTAIN]
        planned = await admin.move_partitions({("u", number): [2] for number in range(3)})
        assert [one.error for one in planned] == [None] * 3
        asked = [
            [one.partition for one in body.partitions] for body in bureau.asked(MovePartitions)
        ]
        assert asked == [[0, 1, 2], [0, 2], [0, 2]]
        assert sorted(bureau.moves.rows) == [("u", 0), ("u", 1), ("u", 2)]


async def test_what_stays_uncertain(autojump_clock: MockClock) -> None:
    """Of all: the call fails. Of some: these have an indefinite error; also where it is refused
    when it is asked for again."""
    async with open_bureau(fill) as (bureau, admin):
        bureau.errors = [UNCERTAIN] * 1000
        with pytest.raises(OutcomeUnknown, match="the controller has changed"):
            await admin.move_partitions({("u", 0): [2], ("u", 1): [1]})
        bureau.errors = [ErrorCode.NONE, *[UNCERTAIN] * 1000]
        first, second = await admin.move_partitions({("u", 0): [2], ("u", 1): [1]})
        assert (first.error, type(second.error)) == (None, OutcomeUnknown)
        refused = ErrorCode.INVALID_UPDATE_VERSION
        bureau.errors = [refused, UNCERTAIN, refused]
        first, second = await admin.move_partitions({("u", 0): [1], ("u", 1): [2]})
        assert isinstance(first.error, InvalidUpdateVersion)
        assert isinstance(second.error, OutcomeUnknown)
        assert "INVALID_UPDATE_VERSION" in str(second.error)


async def test_a_cluster_of_an_older_version(autojump_clock: MockClock) -> None:
    """The feature level is too low; or a broker does not know the requests. Definite."""
    async with open_bureau(fill) as (bureau, admin):
        bureau.errors = [ErrorCode.UNSUPPORTED_VERSION] * 2
        with pytest.raises(UnsupportedVersion):
            await admin.move_partitions({("u", 0): [2], ("u", 1): [1]})

    def age(bureau: Bureau) -> None:
        for broker in bureau.world.brokers.values():
            del broker.handlers[ListMoves], broker.handlers[MovePartitions]

    async with open_bureau(age) as (_, admin):
        for ask in (
            admin.move_partitions({("t", 0): [2]}),
            admin.cancel_moves(),
            admin.moves(),
            admin.alter_replication_factor("t", 2),
        ):
            with pytest.raises(UnsupportedVersion) as caught:
                await ask
            assert caught.value.definite


async def test_an_answer_about_others(autojump_clock: MockClock) -> None:
    """A faulty broker proves nothing."""
    async with open_bureau() as (bureau, admin):
        bureau.lie(MovePartitions, MovePartitionsReply())
        with pytest.raises(Exception, match="for other partitions"):
            await admin.move_partitions({("t", 0): [2]})


# -- cancels -----------------------------------------------------------------------------------


async def test_moves_are_taken_back(autojump_clock: MockClock) -> None:
    """One that waits, one that is under way, and one that there is not."""
    async with open_bureau(fill, brokers=4) as (bureau, admin):
        await admin.move_partitions({("u", 0): [3], ("u", 1): [4, 2]})
        bureau.moves.begin("u", 1)
        assert bureau.replicas["u", 1][0] == (4, 2, 1)
        told = await admin.cancel_moves([("u", 0), ("u", 1), ("u", 2), ("u", 0)])
        assert [(one.partition, one.outcome, one.error) for one in told] == [
            (0, "cancelled", None), (1, "cancelled", None), (2, "not moving", None),
        ]  # fmt: skip
        assert (bureau.moves.rows, bureau.replicas["u", 1][0]) == ({}, (2, 1))


async def test_uncertain_cancels(autojump_clock: MockClock) -> None:
    """What does not move any more was cancelled, after a lost answer, too."""
    async with open_bureau(fill) as (bureau, admin):
        places = [("u", 0), ("u", 1)]
        for errors in ([UNCERTAIN, ErrorCode.NONE], [LOST]):
            await admin.move_partitions({place: [2] for place in places})
            bureau.errors = errors
            told = await admin.cancel_moves(places)
            assert [one.outcome for one in told] == ["cancelled", "cancelled"]
            assert bureau.moves.rows == {}
        bureau.errors = [ErrorCode.NONE, *[UNCERTAIN] * 1000]
        told = await admin.cancel_moves([("u", 2), ("u", 0)])
        assert [one.outcome for one in told] == ["not moving", "unknown"]


async def test_all_moves_are_taken_back(autojump_clock: MockClock) -> None:
    """Those of all topics; where there is none, nothing is sent."""
    async with open_bureau(fill, brokers=3) as (bureau, admin):
        assert await admin.cancel_moves() == ()
        assert bureau.count(MovePartitions) == 0
        moves = {("u", number): [3] for number in range(3)} | {("t", 0): [3]}
        await admin.move_partitions(moves)
        bureau.errors = [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]
        told = await admin.cancel_moves()
        assert {(one.topic, one.partition) for one in told} == {*moves}
        assert sorted(one.outcome for one in told) == ["cancelled"] * 3 + ["failed"]
        [failed] = [one for one in told if one.error is not None]
        assert str(failed.error).startswith(f"{failed.topic}-{failed.partition}: ")
        assert [*bureau.moves.rows] == [(failed.topic, failed.partition)]


@pytest.mark.parametrize(
    ("partitions", "error", "told"),
    [
        ("t", TypeError, "expected a list of pairs"),
        ([], InvalidRequest, "leave it out for all"),
        ([0], TypeError, "expected a pair"),
        ([("no", 0)], UnknownTopicOrPartition, "no topic 'no'"),
        ([("t", 1)], UnknownTopicOrPartition, "not 1"),
    ],
)
async def test_cancels_that_are_refused_here(
    partitions: Any, error: type[Exception], told: str, autojump_clock: MockClock
) -> None:
    """Nothing is sent."""
    async with open_bureau() as (bureau, admin):
        with pytest.raises(error, match=told):
            await admin.cancel_moves(partitions)
        assert bureau.count(MovePartitions) == 0


# -- lists -------------------------------------------------------------------------------------


async def test_nothing_moves(autojump_clock: MockClock) -> None:
    """No broker is asked for sizes."""
    async with open_bureau(fill) as (bureau, admin):
        assert await admin.moves() == ()
        assert bureau.count(DescribeLogs) == 0


async def test_how_far_moves_are(autojump_clock: MockClock) -> None:
    """In several pages: those under way first, with the bytes that new replicas have of those that
    the leader has; the sizes of others are not asked for."""
    async with open_bureau(fill, brokers=4) as (bureau, admin):
        await admin.move_partitions(
            {("u", 0): [1, 3], ("u", 1): [3, 4], ("u", 2): [2, 1], ("t", 0): [4]}
        )
        bureau.moves.begin("u", 1)
        bureau.moves.begin("u", 2)
        bureau.copied = {(3, "u", 1): 300, (4, "u", 1): 999}
        copying, dropping, *waiting = await admin.moves()
        assert (copying.topic, copying.partition, copying.is_under_way) == ("u", 1, True)
        assert (copying.replicas, copying.target) == ((3, 4, 2, 1), (3, 4))
        assert (copying.adding, copying.leader, copying.waits_for) == ((3, 4), 2, "")
        # No more than the leader, whose oldest records may have gone.
        assert (copying.bytes_done, copying.bytes_total) == (1100, 1600)
        assert (dropping.partition, dropping.adding) == (2, ())
        assert (dropping.bytes_done, dropping.bytes_total) == (0, 0)
        assert [(one.topic, one.partition, one.adding) for one in waiting] == [
            ("u", 0, (3,)), ("t", 0, (4,)),
        ]  # fmt: skip
        assert {(one.bytes_done, one.is_under_way) for one in waiting} == {(None, False)}
        assert bureau.count(ListMoves) == 2
        topics = {body.topics for body in bureau.asked(DescribeLogs)}
        assert topics == {(bureau.world.topics["u"].topic_id,)}


async def test_who_is_asked(autojump_clock: MockClock) -> None:
    """The controller, whoever that is: others may be behind; without one, anybody."""
    async with open_bureau(fill) as (bureau, admin):
        await admin.move_partitions({("u", 0): [2]})
        bureau.controller_id, bureau.moves.known = 2, {1: {}}
        assert len(await admin.moves()) == 1
        assert [one.count(ListMoves) for one in bureau.world.brokers.values()] == [0, 1]
        bureau.controller_id, bureau.moves.known = -1, {}
        assert len(await admin.moves()) == 1


async def test_brokers_that_do_not_answer(autojump_clock: MockClock) -> None:
    """What they would know is not known: the new replica's bytes, or the leader's."""
    async with open_bureau(fill, brokers=3) as (bureau, admin):
        bureau.elsewhere = {4}
        await admin.move_partitions({("u", 0): [1, 4], ("u", 1): [3], ("t", 0): [3]})
        for key in [*bureau.moves.rows]:
            bureau.moves.begin(*key, waits_for="broker 4 is down" if key == ("u", 0) else "")
        bureau.copied = {(3, "u", 1): 5}
        first, second, third = await admin.moves()
        assert (first.bytes_done, first.bytes_total) == (None, 800)
        assert (first.waits_for, second.waits_for) == ("broker 4 is down", "")
        assert (second.bytes_done, second.bytes_total) == (5, 800)
        assert (third.bytes_done, third.bytes_total) == (0, 0)
        bureau.world.brokers[2].stop()
        _, second, _ = await admin.moves()
        assert (second.leader, second.bytes_done, second.bytes_total) == (2, None, None)


async def test_a_replica_that_is_not_made_yet(autojump_clock: MockClock) -> None:
    """Its broker has answered, and has nothing; without a leader nothing is known."""
    async with open_bureau(fill, brokers=3) as (bureau, admin):
        await admin.move_partitions({("u", 0): [3]})
        bureau.moves.begin("u", 0)
        bureau.replicas["u", 0] = (1, 2), (1, 2)  # as the disks have it
        [one] = await admin.moves()
        assert (one.bytes_done, one.bytes_total) == (0, 800)
        bureau.world.lead("u", 0, -1)
        bureau.moves.begin("u", 0)
        [one] = await admin.moves()
        assert (one.leader, one.bytes_done, one.bytes_total) == (None, None, None)


async def test_a_topic_that_is_deleted_meanwhile(autojump_clock: MockClock) -> None:
    """Its moves are left out."""
    async with open_bureau(fill, brokers=3) as (bureau, admin):
        await admin.move_partitions({("u", 0): [3], ("t", 0): [3]})
        del bureau.world.topics["u"]
        assert [one.topic for one in await admin.moves()] == ["t"]


async def test_pages_that_lead_nowhere(autojump_clock: MockClock) -> None:
    """A faulty broker: the call ends."""
    async with open_bureau() as (bureau, admin):
        topic_id = bureau.world.topics["t"].topic_id
        bureau.lie(ListMoves, ListMovesReply((), 1, MoveCursor(topic_id, 0)))
        with pytest.raises(ServerError, match="lead nowhere"):
            await admin.moves()


# -- descriptions ------------------------------------------------------------------------------


async def described(admin: Admin) -> PartitionDetails:
    return (await admin.describe_topic("u")).partitions[0]


async def test_a_description_tells_of_a_move(autojump_clock: MockClock) -> None:
    """Which replicas come, and which go then."""
    async with open_bureau(fill, brokers=3) as (bureau, admin):
        await admin.move_partitions({("u", 0): [3, 1]})
        assert ((await described(admin)).adding, (await described(admin)).removing) == ((), ())
        bureau.moves.begin("u", 0)
        found = await described(admin)
        assert (found.replicas, found.adding, found.removing) == ((3, 1, 2), (3,), (2,))
        bureau.moves.finish("u", 0)
        found = await described(admin)
        assert (found.replicas, found.adding, found.removing) == ((3, 1), (), ())


# -- replication factors -----------------------------------------------------------------------


async def test_more_replicas(autojump_clock: MockClock) -> None:
    """On active brokers of other racks, after those that are there; a dry run plans nothing."""

    def prepare(bureau: Bureau) -> None:
        fill(bureau)
        bureau.racks = {1: "a", 2: "b", 3: "a", 4: "c", 5: "d"}
        bureau.down, bureau.elsewhere, bureau.min_isr = {3}, {5}, {"u": 3}
        bureau.world.add_topic("v", 5)

    async with open_bureau(prepare, brokers=4) as (bureau, admin):
        dry = await admin.alter_replication_factor("u", 3, dry_run=True)
        assert bureau.count(MovePartitions) == 0
        done = await admin.alter_replication_factor("u", 3)
        assert dry == done
        assert [(one.partition, one.replicas, one.target) for one in done.moves] == [
            (0, (1, 2), (1, 2, 4)), (1, (2, 1), (2, 1, 5)), (2, (1, 2), (1, 2, 4)),
        ]  # fmt: skip
        assert (done.topic, done.replication_factor) == ("u", 3)
        assert done.warning.startswith("acks=all needs all 3 replicas")
        assert bureau.moves.rows["u", 1].target == (2, 1, 5)
        # It is on its way there already.
        assert (await admin.alter_replication_factor("u", 3)).moves == ()
        with pytest.raises(InvalidReplicationFactor, match=r"only 4 brokers are active \(1, 2, 4"):
            await admin.alter_replication_factor("u", 5)


async def test_fewer_replicas(autojump_clock: MockClock) -> None:
    """What is not in sync goes first, then what does not lead; a move that waits counts as made."""
    async with open_bureau(fill, brokers=3) as (bureau, admin):
        bureau.replicas["u", 0] = (3, 1, 2), (1, 2)
        await admin.move_partitions({("u", 2): [3]})
        bureau.down = {2}
        done = await admin.alter_replication_factor("u", 1)
        assert [(one.partition, one.target) for one in done.moves] == [(0, (1,)), (1, (2,))]
        assert done.warning.startswith(
            "broker 2 is down: 1 move cannot finish before it is back; one"
        )


async def test_some_partitions_are_refused(autojump_clock: MockClock) -> None:
    """The others are planned."""
    async with open_bureau(fill, brokers=3) as (bureau, admin):
        bureau.errors = [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        done = await admin.alter_replication_factor("u", 3)
        assert [one.error and str(one.error) for one in done.moves] == [
            None, "u-1: INVALID_REQUEST", None,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "factor", "error"),
    [
        ("a/b", 2, InvalidTopic),
        ("no", 2, UnknownTopicOrPartition),
        ("t", 0, InvalidReplicationFactor),
        ("t", 17, InvalidReplicationFactor),
        ("t", "2", TypeError),
        ("t", 3, InvalidReplicationFactor),
    ],
)
async def test_factors_that_are_refused_here(
    name: str, factor: Any, error: type[Exception], autojump_clock: MockClock
) -> None:
    """Nothing is sent."""
    async with open_bureau() as (bureau, admin):
        with pytest.raises(error):
            await admin.alter_replication_factor(name, factor)
        assert bureau.count(MovePartitions) == 0
