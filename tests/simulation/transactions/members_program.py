"""Programs around a shared transaction: drivers that commit its versions, members that write them.

What Spark does, in small, by the SDK's rules of receipts, requests and answers. A driver has tasks,
each of which is tried until one attempt has told its receipt; then it commits the version with one
receipt of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.transactions.members import VersionId
from raftmq.errors import RaftmqError
from tests.simulation.transactions.quorum import TOPIC_ID

if TYPE_CHECKING:
    from raftmq.client.transactions.members import CommittedVersion, Receipt
    from raftmq.wire.messages.transactions import EndTxn, EndTxnReply
    from tests.simulation.transactions.members_quorum import Version
    from tests.simulation.transactions.replica import Record

NO_BLOCK = -1


class Handed(NamedTuple):
    """What a driver gets of a member: its receipt. The walk keeps the records with it."""

    receipt: Receipt
    records: frozenset[Record] = frozenset()


class Member:
    """One attempt of a task."""

    def __init__(self, serial: int, driver: Driver, task: int) -> None:
        self.serial, self.driver, self.task = serial, driver, task
        self.id, self.name, self.version = driver.id, driver.name, driver.version
        self.opening = driver.opening
        self.block, self.number = NO_BLOCK, -1
        self.joined: Version | None = None
        self.sent: list[Record] = []
        self.acknowledged: set[Record] = set()
        self.handed: Handed | None = None  # once it has left

    @property
    def producer_id(self) -> int:
        return self.block + self.number

    def may_write(self) -> bool:
        return self.block >= 0 and self.handed is None

    def may_leave(self) -> bool:
        is_flushed = bool(self.sent) and self.acknowledged.issuperset(self.sent)
        return self.may_write() and is_flushed

    def leave(self) -> Handed:
        places = tuple((TOPIC_ID, each) for each in sorted({one.partition for one in self.sent}))
        receipt = self.id.receipt(len(self.sent))
        if places:
            receipt = replace(receipt, block=self.block, number=self.number, partitions=places)
        self.handed = Handed(receipt, frozenset(self.sent))
        return self.handed

    def done(self) -> Handed:
        """It was told that the version was committed before."""
        return Handed(self.id.receipt(0, is_done=True))


class Driver:
    """A program that works on one version after the other.

    Attributes:
        opening: how often it has begun a version; what its members tell of earlier ones is old.
        handed: by task, what the first of its attempts has told.
        ending: its commit, once it has asked for it; of so many `rows`.
        is_doubted: an answer to that was lost.
    """

    def __init__(self, serial: int, name: str, lineage: str) -> None:
        self.serial, self.name, self.lineage = serial, name, lineage
        self.opening = 0

    def begin(self, version: int, tasks: int) -> None:
        self.id, self.version = VersionId(self.name, self.lineage, version), version
        self.tasks, self.opening = tasks, self.opening + 1
        self.handed: dict[int, Handed] = {}
        self.ending: VersionEnding | None = None
        self.rows, self.is_doubted = 0, False

    def hear(self, member: Member, handed: Handed) -> None:
        if (member.driver, member.opening) == (self, self.opening) and self.ending is None:
            self.handed.setdefault(member.task, handed)

    def may_commit(self) -> bool:
        return self.ending is None and len(self.handed) == self.tasks

    def is_done(self) -> bool:
        """Some of its members have dropped what they had."""
        return any(each.receipt.is_done for each in self.handed.values())

    def commit(self) -> VersionEnding:
        """As `SharedVersion.commit` does. Raises RaftmqError."""
        handed = tuple(self.handed.values())
        request = self.id.commit_of([each.receipt for each in handed], None)
        self.rows = request.count
        if self.is_done():  # an abort tells whether it is committed, and commits nothing
            request = self.id.end_request(is_commit=False)
        self.ending = VersionEnding(self, request, handed)
        return self.ending

    def read(self, reply: EndTxnReply) -> CommittedVersion | RaftmqError:
        """What the answer means, or the error that the program gets."""
        try:
            if self.is_done():
                return self.id.done_before(reply, self.rows)
            return self.id.committed(reply, self.rows, was_doubted=self.is_doubted)
        except RaftmqError as error:
            return error


# Messages on their way


class Joining(NamedTuple):
    """A member asks for its number; sent again it asks for another one."""

    member: Member


class Report(NamedTuple):
    """A member tells its driver."""

    member: Member
    handed: Handed


class VersionEnding(NamedTuple):
    """A driver commits, with these receipts; or somebody aborts, with none."""

    driver: Driver | None
    request: EndTxn
    handed: tuple[Handed, ...] = ()
