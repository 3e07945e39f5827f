"""Three brokers, one topic, and a group of member processes that read it.

Owns what is asked of the whole: who coordinates, whether the group is whole, whether it has read
all there is; and the verdict. Brokers and members are in the hands of `brokers` and `members`.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Self

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.broker_process import AS_OPERATED
from tests.cluster.group_judge import Evidence, Span, Verdict
from tests.cluster.group_load import GROUP, TOPIC, GroupLoad
from tests.cluster.group_process import MEMBER, Members
from tests.cluster.group_words import BATCH, BEFORE, MANUAL, RECORD, MemberOrder
from tests.cluster.node_process import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from raftmq.client.administration.results import GroupDetails

SESSION_MS = 6000
SETTLING_SECONDS = 5.0  # after a broker is back, leaders still change
FIRST_WAIT = "groups.initial_rebalance_delay_ms=500"
_COMMITS = (BATCH, BATCH, RECORD, MANUAL)


class GroupCluster:
    """Attributes:
    outages: when some broker was down, or had just come back.
    verdict: the last one.
    """

    def __init__(
        self,
        root: Path,
        *,
        seed: int,
        members: int = 6,
        partitions: int = 24,
        is_at_most_once: bool = False,
        program: Callable[[int], Sequence[str]] = lambda _: AS_OPERATED,
        member_program: Callable[[int], Sequence[str]] = lambda _: MEMBER,
    ) -> None:
        """`program` and `member_program`, behind `python -m`, go by node and member."""
        self.random = Random(seed)
        self.member_count, self._is_at_most_once = members, is_at_most_once
        self.brokers = BrokerCluster(root, program=program)
        self.members = Members(root, program=member_program)
        self.bootstrap = ",".join(map(str, map(self.brokers.address, self.brokers.nodes)))
        self.load = GroupLoad(self.bootstrap, partitions=partitions)
        self.outages: list[Span] = []
        self.verdict: Verdict | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._closing.enter_context(self.brokers)
        self._closing.callback(self.load.stop)
        self._closing.enter_context(self.members)
        return self

    def __exit__(self, *details: object) -> None:
        self._closing.close()

    def start(self) -> None:
        self.brokers.start(self.brokers.nodes, FIRST_WAIT)
        self.brokers.wait_ready(self.brokers.nodes)
        self.load.start()
        self.wait("the topic", lambda: self.load.is_made)
        self.members.wait_ready([self.start_member() for _ in range(self.member_count)])
        self.wait_whole()

    # What is done

    def start_member(self) -> int:
        """As the seed draws it."""
        commit = BEFORE if self._is_at_most_once else self.random.choice(_COMMITS)
        way = self.random.choice(("batches", "records"))
        return self.members.start(
            MemberOrder(self.bootstrap, GROUP, TOPIC, "", commit, way, SESSION_MS)
        )

    def kill_broker(self, node_id: int) -> float:
        """When."""
        at = time.monotonic()
        self.brokers.kill([node_id])
        return at

    def restart_broker(self, node_id: int, *, down_since: float) -> None:
        self.brokers.start([node_id], FIRST_WAIT)
        self.brokers.wait_ready([node_id])
        self.outages.append(Span(down_since, time.monotonic() + SETTLING_SECONDS))

    # What is waited for

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Neither the load nor a process may end meanwhile that should not."""

        def looked() -> bool:
            if self.load.failure:
                raise NodeFailed(f"the load has ended: {self.load.failure}")
            self.brokers._check_alive()
            return is_so()

        try:
            self.members.wait(what, looked)
        except NodeFailed as error:
            raise NodeFailed(f"{error}\n{self._state()}") from error

    def wait_whole(self) -> float:
        """Until the group is stable with all of its members, asked from now on; seconds."""
        now = time.monotonic()
        self.wait("a stable group of all its members", lambda: self._is_whole(now))
        return time.monotonic() - now

    def wait_progress(self) -> None:
        """Until each partition has been written, and the group has committed that."""
        now = time.monotonic()
        served = self.load.served
        self.wait("acknowledgements", lambda: all(at > now for at in served.values()))
        ends = self.load.ends
        self.wait("commits in all partitions", lambda: self._has_committed(ends))

    def coordinator(self) -> int:
        """When it can be asked."""
        now, found = time.monotonic(), list[int]()

        def look() -> bool:
            details = self._details(now)
            found[:] = [details.coordinator] if details else []
            return bool(found) and found[0] in self.brokers.running

        self.wait("a coordinator", look)
        return found[0]

    def _details(self, after: float) -> GroupDetails | None:
        asked_at, details = self.load.details
        return details if asked_at > after else None

    def _is_whole(self, after: float) -> bool:
        details = self._details(after)
        if details is None or details.state != "Stable":
            return False
        return len(details.members) == self.member_count == len(self.members.running)

    def _has_committed(self, ends: dict[int, int]) -> bool:
        committed = self.load.committed
        return all(committed.get(partition, 0) >= end for partition, end in ends.items())

    def _state(self) -> str:
        behind = {
            partition: (self.load.committed.get(partition), end)
            for partition, end in self.load.ends.items()
            if self.load.committed.get(partition, 0) < end
        }
        return f"behind: {behind}\nthe group: {self.load.details}"

    # What is judged

    @property
    def ledger(self) -> Self:
        """As `series.py` asks for it."""
        return self

    @property
    def acknowledged(self) -> Mapping[tuple[int, int], int]:
        return self.load.acknowledged

    @property
    def findings(self) -> list[str]:
        return self.load.findings + (self.verdict.findings if self.verdict else [])

    def compare(self) -> None:
        """Have the producers rest, the group read all there is, and judge; then go on."""
        self._read_all()
        self.judge()
        self.load.work()

    def end(self) -> Verdict:
        """All is read, and everybody leaves."""
        self._read_all()
        self.members.leave(self.members.running)
        return self.judge()

    def _read_all(self) -> None:
        self.load.rest()
        self.wait("the producers to rest", lambda: self.load.is_at_rest)
        self.wait_whole()
        ends = self.load.ends
        self.wait("the group to read everything", lambda: self._has_committed(ends))

    def judge(self) -> Verdict:
        observations, orders = list(self.load.observations), self.members.orders
        self.verdict = Verdict(
            Evidence(
                acknowledged=dict(self.load.acknowledged),
                denied=frozenset(self.load.denied),
                key_count=self.load.key_count,
                logs=self.members.logs(),
                commits={number: order.commit for number, order in orders.items()},
                struck=list(self.members.struck),
                outages=list(self.outages),
                observations=observations,
            )
        )
        return self.verdict
