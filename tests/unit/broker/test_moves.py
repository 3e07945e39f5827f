"""Moves that clients ask for: planned one by one, taken back, and listed in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.broker.requests.levels import check_level
from raftmq.broker.requests.moves import ROWS_AT_ONCE, MoveRequests
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    BrokerRegistered,
    FeatureLevel,
    PartitionId,
    PlanMove,
    ReassignPartition,
    RegisterBroker,
    UnfenceBroker,
)
from raftmq.wire.messages.moves import ListMoves, MoveCursor, MovePartitions, WantedMove
from tests.unit.broker.asking import (
    NODE,
    ORDERS,
    UNKNOWN,
    ask,
    changes,
    cluster_of,
    codes,
    fence,
    make,
    said,
)

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

    from raftmq.metadata.image import MetadataImage
    from raftmq.wire.messages.moves import ListMovesReply
    from tests.simulation.quorum_fake import FakeCluster


async def here(*replicas: tuple[int, ...], brokers: int = 4) -> FakeCluster:
    cluster = await cluster_of(*[None] * brokers, level=FeatureLevel.MOVES)
    if replicas:
        await make(cluster, *replicas)
    return cluster


def image_of(cluster: FakeCluster) -> MetadataImage:
    return cluster.nodes[NODE].image


async def asked(cluster: FakeCluster, *wanted: WantedMove) -> list[Any]:
    """The outcome of each partition."""
    requests = MoveRequests(changes(cluster), voters=(1, 2, 3))
    return list((await ask(requests.move, MovePartitions(wanted))).partitions)


async def told(cluster: FakeCluster, **fields: Any) -> ListMovesReply:
    reply: ListMovesReply = await ask(MoveRequests(changes(cluster)).tell, ListMoves(**fields))
    return reply


async def start(cluster: FakeCluster, number: int) -> None:
    """As the controller does."""
    image, key = image_of(cluster), PartitionId(ORDERS, number)
    plan, epoch = image.moves[key], image.partitions[key].partition_epoch
    await said(cluster, ReassignPartition(*key, epoch, plan.replicas, plan.planned_at))


async def test_a_move_is_planned_and_taken_back(autojump_clock: MockClock) -> None:
    """The answer comes when this node shows it.

    A10.2.
    """
    cluster = await here((1, 2))
    cluster.follow_seconds = 0.5
    assert codes(await asked(cluster, WantedMove(ORDERS, 0, (3, 4)))) == [0]
    assert image_of(cluster).moves[PartitionId(ORDERS, 0)].replicas == (3, 4)
    assert codes(await asked(cluster, WantedMove(ORDERS, 0))) == [0]
    assert not image_of(cluster).moves


async def test_a_move_under_way_is_taken_back(autojump_clock: MockClock) -> None:
    """A10.2."""
    cluster = await here((1, 2))
    await asked(cluster, WantedMove(ORDERS, 0, (3, 4)))
    await start(cluster, 0)
    assert codes(await asked(cluster, WantedMove(ORDERS, 0))) == [0]
    assert image_of(cluster).partitions[PartitionId(ORDERS, 0)].replicas == (1, 2)


async def test_a_move_that_others_have_changed_is_asked_for_once_more(
    autojump_clock: MockClock,
) -> None:
    """This broker is behind, and learns what there is; if it learns nothing, that is the answer,
    and nothing was changed.

    A10.2.
    """
    cluster = await here((1, 2), (1, 2))
    cluster.follow_seconds = 0.5
    await asked(cluster, WantedMove(ORDERS, 0, (3, 4)))
    key = PartitionId(ORDERS, 0)
    await cluster.leader.propose(PlanMove(*key, (4,)))
    assert image_of(cluster).moves[key].replicas == (3, 4)
    assert codes(await asked(cluster, WantedMove(ORDERS, 0), WantedMove(ORDERS, 1, (3,)))) == [0, 0]
    assert set(image_of(cluster).moves) == {PartitionId(ORDERS, 1)}
    await cluster.leader.propose(PlanMove(*key, (4,)))
    cluster.follow_seconds = 100.0
    [outcome] = await asked(cluster, WantedMove(ORDERS, 0, (3,)))
    assert outcome.error == ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.leader.image.moves[key].replicas == (4,)


async def test_of_thousands_the_level_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Whether they may be planned or not."""
    looks = list[object]()

    def look(image: MetadataImage, *arguments: Any, **fields: Any) -> None:
        looks.append(image)
        check_level(image, *arguments, **fields)

    monkeypatch.setattr("raftmq.broker.requests.moves.check_level", look)
    cluster = await here((1,))
    wanted = [WantedMove(ORDERS, n, (2,)) for n in range(ROWS_AT_ONCE + 1)]
    outcomes = codes(await asked(cluster, *wanted))
    assert outcomes == [0, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * ROWS_AT_ONCE]
    assert len(looks) == 1


async def test_each_partition_stands_for_itself(autojump_clock: MockClock) -> None:
    """Fine; unknown broker; one twice; nothing to take back; unknown partition and topic; named
    more than once.

    A10.2.
    """
    cluster = await here((1,), (1,), (1,), (1,), (1,))
    outcomes = await asked(
        cluster,
        WantedMove(ORDERS, 0, (2,)),
        WantedMove(ORDERS, 1, (9,)),
        WantedMove(ORDERS, 2, (2, 2)),
        WantedMove(ORDERS, 3),
        WantedMove(ORDERS, 9, (2,)),
        WantedMove(UNKNOWN, 0, (2,)),
        WantedMove(ORDERS, 4, (2,)),
        WantedMove(ORDERS, 4, (3,)),
    )
    assert codes(outcomes) == [
        0,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert "brokers [9] are not registered" in outcomes[1].message
    assert "name it once" in outcomes[2].message
    assert "named more than once" in outcomes[6].message


async def test_below_its_level_the_brokers_to_upgrade_are_named(autojump_clock: MockClock) -> None:
    """Nothing is proposed, as nodes of an earlier version would stop at it."""
    cluster = await cluster_of(None, None, None, level=FeatureLevel.SCHEDULED)
    await make(cluster, (1,))
    version = image_of(cluster).version
    for wanted in (WantedMove(ORDERS, 0, (2,)), WantedMove(ORDERS, 0)):
        [outcome] = await asked(cluster, wanted)
        assert outcome.error == ErrorCode.UNSUPPORTED_VERSION
        assert "moving replicas needs feature level 6" in outcome.message
        assert "upgrade brokers [1, 2, 3]" in outcome.message
    assert image_of(cluster).version == version
    assert (await told(cluster)).count == 0


async def test_a_broker_gets_no_more_than_it_has_room_for(autojump_clock: MockClock) -> None:
    """Room for two more: what is planned counts, a replaced plan does not, nor does what drops.

    A10.2.
    """
    cluster = await here()
    again = RegisterBroker(3, b"j" * 16, bytes([3]) * 16, logs_max=3, feature_level_max=6)
    registered = await cluster.leader.propose(again)
    assert isinstance(registered, BrokerRegistered)
    await said(cluster, UnfenceBroker(3, registered.broker_epoch))
    await make(cluster, (1,), (1,), (1,), (1, 3))
    first = await asked(cluster, *(WantedMove(ORDERS, n, (3,)) for n in range(3)))
    assert codes(first) == [0, 0, ErrorCode.INVALID_PARTITIONS]
    assert "do not fit on broker 3" in first[2].message
    assert codes(await asked(cluster, WantedMove(ORDERS, 2, (3,)))) == [
        ErrorCode.INVALID_PARTITIONS
    ]
    assert codes(await asked(cluster, WantedMove(ORDERS, 0, (3, 2)))) == [0]
    assert codes(await asked(cluster, WantedMove(ORDERS, 3, (3, 1)))) == [0]
    assert codes(await asked(cluster, WantedMove(ORDERS, 0, (2,)))) == [0]
    assert codes(await asked(cluster, WantedMove(ORDERS, 2, (3,)))) == [0]


async def test_moves_are_listed_in_pages(autojump_clock: MockClock) -> None:
    """Under way first, then in the order of their plans, each with what it waits for.

    A10.2.
    """
    cluster = await here((1,), (1,), (1,), (1,))
    for number, broker_id in ((3, 4), (2, 3), (0, 4), (1, 2)):
        await said(cluster, PlanMove(ORDERS, number, (broker_id,)))
    await start(cluster, 2)
    await start(cluster, 3)
    await fence(cluster, 4)
    await said(cluster, PlanMove(ORDERS, 3, (2,)))
    reply = await told(cluster)
    assert [
        (row.partition, row.is_under_way, row.target, row.waits_for) for row in reply.moves
    ] == [
        (2, True, (3,), ""),
        (3, True, (2,), ""),
        (0, False, (4,), "broker 4 is down: start it"),
        (1, False, (2,), ""),
    ]
    assert (reply.moves[0].replicas, reply.moves[0].leader) == ((3, 1), 1)
    assert (reply.count, reply.next) == (4, None)
    page = await told(cluster, moves_max=2)
    assert (page.moves, page.count, page.next) == (reply.moves[:2], 4, MoveCursor(ORDERS, 0))
    page = await told(cluster, moves_max=2, first=page.next)
    assert (page.moves, page.next) == (reply.moves[2:], None)
    ended = await told(cluster, moves_max=1, first=MoveCursor(UNKNOWN, 0))
    assert ended.moves == reply.moves[:1]
