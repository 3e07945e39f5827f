"""What the cluster has decided about one partition, as far as a replica needs to know it.

Owns names only. The broker translates the metadata into these; nothing here knows where the
metadata comes from.
"""

from __future__ import annotations

from typing import NamedTuple

NO_LEADER = -1


class Assignment(NamedTuple):
    """One committed state of a partition.

    Invariants: `isr` is a subset of `replicas`; the leader, if there is one, is in `isr`.
    `partition_epoch` grows with every change, `leader_epoch` with every change of the leader.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int  # what acks=all needs: min.insync.replicas, or all where there are fewer
    is_recovering: bool = False  # elected uncleanly: the leader has not said yet that it is whole
    log_start_offset: int = 0  # what is before it was deleted on request: nobody shows it again


class IsrMember(NamedTuple):
    """A replica as it was when the leader judged it: another incarnation must not slip in."""

    broker_id: int
    broker_epoch: int
