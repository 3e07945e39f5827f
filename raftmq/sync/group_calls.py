"""The part of `client.admin` of `raftmq.sync` that is about consumer groups, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from raftmq.client.administration.groups.calls import GroupCalls as AsyncGroupCalls
    from raftmq.client.administration.groups.calls import To
    from raftmq.client.administration.results import (
        GroupDetails,
        GroupOffset,
        GroupSummary,
        OffsetReset,
        PartitionLag,
        TopicPartition,
    )
    from raftmq.sync.loop import Loop


class GroupCalls:
    """What each call does, takes, returns and raises, the asynchronous class says."""

    def __init__(self, loop: Loop, calls: AsyncGroupCalls) -> None:
        self._loop, self._calls = loop, calls

    def list_groups(self) -> tuple[GroupSummary, ...]:
        """All groups, by name."""
        return self._loop.call(self._calls.list_groups)

    def describe_group(self, name: str) -> GroupDetails:
        """Its state, its coordinator, and its members with what each of them reads."""
        return self._loop.call(self._calls.describe_group, name)

    def group_offsets(self, name: str) -> dict[TopicPartition, GroupOffset]:
        """What it has committed, by topic and partition."""
        return self._loop.call(self._calls.group_offsets, name)

    def group_lag(self, name: str) -> tuple[PartitionLag, ...]:
        """How far it is behind, by topic and partition, and who reads each of them."""
        return self._loop.call(self._calls.group_lag, name)

    def reset_group_offsets(
        self,
        name: str,
        *,
        to: To | None = None,
        shift: int | None = None,
        topics: Collection[str] | None = None,
        partitions: Collection[TopicPartition] | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, OffsetReset]:
        """Let a group without members go on elsewhere."""

        async def run() -> dict[TopicPartition, OffsetReset]:
            return await self._calls.reset_group_offsets(
                name, to=to, shift=shift, topics=topics, partitions=partitions, dry_run=dry_run
            )

        return self._loop.call(run)

    def alter_group_offsets(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        *,
        expected: Mapping[TopicPartition, int | None] | None = None,
    ) -> None:
        """Commit offsets in place of a group without members, like {("orders", 0): 42}."""

        async def run() -> None:
            await self._calls.alter_group_offsets(name, offsets, expected=expected)

        self._loop.call(run)

    def delete_group(self, name: str) -> None:
        """Delete a group without members, with the offsets that it has committed."""
        self._loop.call(self._calls.delete_group, name)

    def delete_group_offsets(self, name: str, partitions: Collection[TopicPartition]) -> None:
        """Forget what a group has committed for some partitions."""
        self._loop.call(self._calls.delete_group_offsets, name, partitions)
