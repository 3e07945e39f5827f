"""What the calls about consumer groups answer with: plain values, frozen.

Nothing here asks anybody. An offset that a group has committed is that of the next record that it
will read. None is what nobody knows or what is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

TopicPartition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list.

    Attributes:
        state: Empty, PreparingRebalance, CompletingRebalance or Stable.
        protocol_type: "consumer"; empty: nobody ever joined, its offsets were committed from
            outside.
        coordinator: the broker that looks after it.
    """

    name: str
    state: str
    protocol_type: str
    member_count: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Attributes:
    instance_id: None: it is not a static member.
    client_id: what the program calls itself.
    host: where its connection comes from.
    topics: to which it has subscribed; None: it says so in a way that is not known here.
    partitions: that it reads; None likewise.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...] | None
    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group with its members, in the order of their ids.

    Attributes:
        generation: grows whenever the partitions are dealt out anew.
        protocol: the assignor that its members have agreed on; empty without members.
        leader: the member that deals out the partitions; empty without members.
        coordinator: the broker that looks after it.
    """

    name: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    coordinator: int
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Attributes:
    offset: of the next record to be read.
    leader_epoch: of the record before it; None: it was not told.
    metadata: the text that was committed with it.
    committed_at_ms: since 1970-01-01 UTC; None: it was not told.
    """

    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is in one partition.

    Attributes:
        committed: None: nothing yet.
        end_offset: after the newest committed record; None: no leader has told.
        lag: offsets, not records, from what is committed to the end; from the oldest record if
            that is later, or if nothing is committed. Control batches take offsets, too:
            behind the last record it stays above 0 until a member has passed and committed them.
            None: no leader has told the end.
        member: who reads it now.
    """

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    lag: int | None
    member: GroupMember | None


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Attributes:
    old: what was committed; None: nothing.
    new: what is committed now, or would be.
    start_offset, end_offset: of the log; `new` lies between them, or at one of them.
    asked: what was asked for, where that lies outside of the log; None: it does not.
    """

    old: int | None
    new: int
    start_offset: int
    end_offset: int
    asked: int | None = None
