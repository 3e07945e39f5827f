"""Size limits of what commands may store in the metadata: texts, ids, members, groups.

Owns these limits and the refusals that name them, so that no client can let every image and
snapshot grow without bound. Topic names, group names and offset metadata are checked in their own
modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import Refused
from raftmq.model import PORT_MAX
from raftmq.tag_filter import TEXT_CHARS_MAX as FILTER_CHARS_MAX
from raftmq.wire.bodies import ID_BYTES, ID_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.metadata.commands import GroupMemberRecord, RegisterBroker, SaveGroup

TEXT_CHARS_MAX = 255  # of host, rack, client id, ...: enough for any DNS name; kept in snapshots
ENDPOINTS_MAX = 32  # of one broker; every client that asks for metadata may get them
# Members of one group. A plan with all subscriptions must fit into one command of 1 MiB.
MEMBERS_MAX = 1_000
# Saved groups, with members or without: each is in memory on every node and in every snapshot.
GROUPS_MAX = 100_000
# Partitions of the crashed members of one command, which all nodes count for; the coordinator names
# the urgent ones.
CRASHED_PARTITIONS_MAX = 4_000
# Commits of one command that expect an offset. Each may be refused, and the refusals are stored as
# the command's result for retries.
EXPECTED_COMMITS_MAX = 1_000
# Partitions of one review: it blocks the event loop of every node while it is applied. The
# controller sends half as many.
REVIEWED_MAX = 1_000


def registration_limits(command: RegisterBroker) -> Refused | None:
    return _refusal(f"broker {command.broker_id}", _registration_problems(command))


def _registration_problems(command: RegisterBroker) -> Iterator[str]:
    if not 0 <= command.broker_id <= ID_MAX:
        yield f"ids are 0 to {ID_MAX}"
    yield from _not_an_id("incarnation", command.incarnation)
    yield from _not_an_id("directory id", command.directory_id)
    yield from _too_long("boot id", command.boot_id)
    yield from _too_long("rack", command.rack or "")
    if len(command.endpoints) > ENDPOINTS_MAX:
        yield f"{len(command.endpoints)} endpoints, at most {ENDPOINTS_MAX}"
    for endpoint in command.endpoints:
        yield from _too_long("listener", endpoint.listener)
        yield from _too_long("host", endpoint.host)
        if not 0 <= endpoint.port <= PORT_MAX:
            yield f"port {endpoint.port}, allowed are 0 to {PORT_MAX}"


def group_limits(command: SaveGroup) -> Refused | None:
    return _refusal(f"group {command.group}", _group_problems(command))


def group_room(command: SaveGroup, count: int) -> Refused | None:
    """The refusal of a new group if there are `count` groups already; None if it may be saved."""
    if count < GROUPS_MAX:
        return None
    message = f"group {command.group} is new, and there are {count} groups already"
    return Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{message}: delete groups that nobody needs")


def _group_problems(command: SaveGroup) -> Iterator[str]:
    yield from _too_long("protocol type", command.protocol_type)
    yield from _too_long("protocol", command.protocol)
    if len(command.tags) > FILTER_CHARS_MAX:
        yield f"filter of {len(command.tags)} characters, at most {FILTER_CHARS_MAX}"
    if len(command.members) > MEMBERS_MAX:
        yield f"{len(command.members)} members, at most {MEMBERS_MAX}"
    for member in command.members:
        yield from _member_problems(member)
    count = 0
    for crashed in command.crashed:
        yield from _too_long("member id", crashed.member_id)
        for held in crashed.held:
            yield from _not_an_id("topic id", held.topic_id)
            if not all(0 <= number <= ID_MAX for number in held.numbers):
                yield f"partitions of a crashed member are 0 to {ID_MAX}"
            count += len(held.numbers)
    if count > CRASHED_PARTITIONS_MAX:
        yield f"{count} partitions of crashed members, at most {CRASHED_PARTITIONS_MAX}"


def _member_problems(member: GroupMemberRecord) -> Iterator[str]:
    yield from _too_long("member id", member.member_id)
    yield from _too_long("client id", member.client_id)
    yield from _too_long("host", member.host)
    yield from _too_long("instance id", member.instance_id or "")


def partition_refusal(who: str, topic_id: bytes, partition: int) -> Refused | None:
    """Checks only the form of a partition id: the partition need not exist."""
    if len(topic_id) == ID_BYTES and 0 <= partition <= ID_MAX:
        return None  # the usual case first: a command may have thousands of them
    problems = [*_not_an_id("topic id", topic_id)]
    if not 0 <= partition <= ID_MAX:
        problems.append(f"partition {partition}, allowed are 0 to {ID_MAX}")
    return _refusal(who, problems)


def slice_refusal(broker_id: int, partitions: tuple[object, ...]) -> Refused | None:
    if len(partitions) <= REVIEWED_MAX:
        return None
    message = f"broker {broker_id}: {len(partitions)} partitions at once, at most {REVIEWED_MAX}"
    return Refused(ErrorCode.INVALID_REQUEST, f"{message}: send several commands")


def _not_an_id(what: str, value: bytes) -> Iterator[str]:
    if len(value) != ID_BYTES:
        yield f"{what} of {len(value)} bytes, it has {ID_BYTES}"


def _too_long(what: str, text: str) -> Iterator[str]:
    if len(text) > TEXT_CHARS_MAX:
        yield f"{what} of {len(text)} characters, at most {TEXT_CHARS_MAX}"


def _refusal(who: str, problems: Iterable[str]) -> Refused | None:
    """A refusal with the first problem only: a command of a faulty client may have thousands."""
    for problem in problems:
        return Refused(ErrorCode.INVALID_REQUEST, f"{who}: {problem}")
    return None
