"""`raftmq group` and the calls behind it, against three real brokers in this process."""

from __future__ import annotations

import json
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from click.testing import CliRunner, Result

from raftmq import testing
from raftmq.cli.main import main
from raftmq.client.group.coordinator import CoordinatorLookup, checked
from raftmq.client.group.planning import encode_assignment, encode_subscription
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import GroupSubscribedToTopic, InvalidUpdateVersion, NonEmptyGroup
from raftmq.sync import connect
from raftmq.wire.messages.groups import (
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    Protocol,
    SyncGroup,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.sync import Client
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

GROUP = "billing"
SESSION_MS = 30_000  # longer than the test


@pytest.fixture
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """With a topic of three partitions, which hold 10 records each."""
    with connect(server.bootstrap) as client:
        client.admin.create_topic("orders", partitions=3, replication_factor=3)
        with client.producer() as producer:
            for number in range(30):
                producer.send("orders", b"x", partition=number % 3)
        yield client


def run(server: Server, line: str) -> Result:
    return CliRunner().invoke(main, ["-b", server.bootstrap, "group", *line.split()])


def rows(server: Server, line: str) -> list[dict[str, Any]]:
    result = run(server, f"{line} -o json")
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(each) for each in result.stdout.splitlines()]


async def join(server: Server) -> str:
    """Be the one member, with one partition, and fall silent. Returns its id."""
    network = AnyioTcpNetwork()
    async with Cluster(server.addresses, network, random=Random(), client_id="worker") as cluster:
        coordinator, member_id = CoordinatorLookup(cluster, GROUP), ""
        protocols = (Protocol("range", encode_subscription(["orders"])),)
        while True:
            body = JoinGroup(GROUP, member_id, protocols, SESSION_MS, SESSION_MS)
            reply: JoinGroupReply = await ask(coordinator, body)
            if not reply.error:
                break
            member_id = reply.member_id
        plan = MemberAssignment(member_id, encode_assignment([("orders", 0)]))
        body = SyncGroup(GROUP, reply.generation, member_id, None, reply.protocol, (plan,))
        checked(await ask(coordinator, body))
        return member_id


async def leave(server: Server, member_id: str) -> None:
    async with Cluster(server.addresses, AnyioTcpNetwork(), random=Random()) as cluster:
        body = LeaveGroup(GROUP, (LeavingMember(member_id),))
        checked(await ask(CoordinatorLookup(cluster, GROUP), body))


async def ask(coordinator: CoordinatorLookup, body: Any) -> Any:
    deadline = trio.current_time() + 20
    return await coordinator.ask(
        lambda: body, lambda reply: reply, deadline=deadline, repeats=RepeatEffect.ACCEPTED
    )


def test_a_group_from_its_first_offset_to_its_end(server: Server, client: Client) -> None:
    """Offsets are set, shown, reset; members stand in the way; the coordinator dies meanwhile.

    A9.3.
    """
    admin = client.admin
    admin.alter_group_offsets(GROUP, {("orders", 0): 4, ("orders", 1): 9})
    with pytest.raises(InvalidUpdateVersion, match="orders-0 has 4 committed now"):
        admin.alter_group_offsets(GROUP, {("orders", 0): 5}, expected={("orders", 0): 3})
    assert [row["lag"] for row in rows(server, f"lag {GROUP}")] == [6, 1, 10]
    assert [row["committed"] for row in rows(server, f"lag {GROUP}")] == [4, 9, None]
    check_ages(server, client)
    assert run(server, f"reset-offsets {GROUP} --to earliest --dry-run").exit_code == 0
    (changed,) = rows(server, f"reset-offsets {GROUP} --shift -9 --topic orders --partition 1 -y")
    assert (changed["old"], changed["new"]) == (9, 0)
    assert {key: one.offset for key, one in admin.group_offsets(GROUP).items()} == {
        ("orders", 0): 4,
        ("orders", 1): 0,
    }
    member_id = trio.run(join, server)
    check_with_a_member(server, client, member_id)
    trio.run(leave, server, member_id)
    server.kill_node(admin.describe_group(GROUP).coordinator)
    (found,) = rows(server, "list")
    assert (found["name"], found["state"], found["members"]) == (GROUP, "Empty", 0)
    plan = admin.reset_group_offsets(GROUP, to="latest", topics=["orders"])
    assert [one.new for one in plan.values()] == [10, 10, 10]
    admin.delete_group_offsets(GROUP, [("orders", 2)])
    assert [row.committed for row in admin.group_lag(GROUP)] == [10, 10, None]
    assert run(server, f"delete {GROUP} -y").stdout == f"group {GROUP}: deleted\n"
    assert admin.list_groups() == ()


def check_ages(server: Server, client: Client) -> None:
    """A record of an hour ago is the oldest one that is not read; then nothing is left."""
    an_hour_ago = int((time.time() - 3600) * 1000)
    client.admin.create_topic("old", partitions=1, replication_factor=3)
    with client.producer() as producer:
        producer.send("old", b"read", timestamp=an_hour_ago - 3_600_000)
        producer.send("old", b"unread", timestamp=an_hour_ago)
        producer.send("old", b"young")
    client.admin.alter_group_offsets("ages", {("old", 0): 1})
    (row,) = rows(server, "lag ages")
    assert (row["lag"], 3600 <= row["age_seconds"] < 3720) == (2, True)
    assert "60m" in run(server, "lag ages").stdout.splitlines()[2].split()
    assert [one.age_seconds for one in client.admin.group_lag("ages")] == [None]
    client.admin.alter_group_offsets("ages", {("old", 0): 3})
    assert [one.age_seconds for one in client.admin.group_lag("ages", with_ages=True)] == [0.0]
    client.admin.delete_group("ages")


def check_with_a_member(server: Server, client: Client, member_id: str) -> None:
    (found,) = rows(server, f"describe {GROUP}")
    assert (found["state"], found["protocol"], found["leader"]) == ("Stable", "range", member_id)
    (member,) = found["members"]
    assert (member["client_id"], member["topics"]) == ("worker", ["orders"])
    assert member["partitions"] == [{"topic": "orders", "partition": 0}]
    assert [row["client_id"] for row in rows(server, f"lag {GROUP}")] == [
        "worker",
        None,
        None,
    ]
    for line in (f"reset-offsets {GROUP} --to latest -y", f"delete {GROUP} -y"):
        result = run(server, line)
        assert (result.exit_code, "has 1 member: stop it first" in result.stderr) == (1, True)
    with pytest.raises(NonEmptyGroup):
        client.admin.delete_group(GROUP)
    with pytest.raises(NonEmptyGroup):
        client.admin.alter_group_offsets(GROUP, {("orders", 0): 1})
    with pytest.raises(GroupSubscribedToTopic):
        client.admin.delete_group_offsets(GROUP, [("orders", 0)])


def test_offsets_beyond_the_end(server: Server, client: Client) -> None:
    """Nobody sets them without knowing: the end is taken, and what was asked for is told."""
    result = run(server, f"reset-offsets {GROUP} --to 11 --topic orders --partition 0 -y")
    assert result.exit_code == 0
    assert result.stderr == (
        "raftmq: orders-0: offset 11 lies beyond the end of the log: 10 in place of it\n"
    )
    assert client.admin.group_offsets(GROUP)["orders", 0].offset == 10
