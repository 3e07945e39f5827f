"""One process of the metadata workload: reads, compare-and-sets, creates and deletes of registers.

Owns the operations and their outcomes in the history. A broker's own answer may be stale: that is a
`stale-read`, which promises nothing. A read is a compare-and-set that changes nothing. All but
stale reads go through the quorum, and must be linearizable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads import registers
from jepsen_like.workloads.sending import error_text
from jepsen_like.workloads.slots import Deed
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.workloads.registers import Found
    from jepsen_like.workloads.slots import Slots
    from raftmq.client.routing.cluster import Cluster

SECONDS_MAX = 5.0  # of one operation


class RegisterProcess:
    """Attributes:
    is_over: the outcome of its last operation is unknown.
    """

    def __init__(
        self,
        cluster: Cluster,
        recorder: Recorder,
        slots: Slots,
        number: int,
        *,
        replication_factor: int,
    ) -> None:
        self._cluster, self._recorder, self._slots = cluster, recorder, slots
        self._number, self._replication_factor = number, replication_factor
        self.is_over = False

    async def step(self, name: str) -> None:
        """Read stale, and do one operation that the answer suggests."""
        is_known, found = await self._look(name)
        if not is_known:
            return
        match self._slots.deed(name, is_there=found is not None):
            case Deed.CREATE:
                await self._create(name)
            case Deed.CHANGE if found is not None:
                await self._change(name, found)
            case Deed.CONFIRM if found is not None:
                await self._confirm(name, found)
            case Deed.DELETE if found is not None:
                await self._delete(name, found)

    async def confirm(self, name: str) -> bool:
        """Whether the state of a register could be confirmed.

        One that seems absent is made: success proves that it was absent. For one that was deleted
        it is enough that a broker says so.
        """
        is_known, found = await self._look(name)
        if found is not None:
            return await self._confirm(name, found) is Type.OK
        if is_known and name in self._slots.current:
            return await self._create(name) is Type.OK
        return is_known

    # -- operations ------------------------------------------------------------------------

    async def _look(self, name: str) -> tuple[bool, Found | None]:
        self._recorder.invoke(self._number, "stale-read", {"key": name})
        try:
            found = await registers.look(self._cluster, name, deadline=_deadline())
        except RaftmqError as error:
            self._complete(Type.FAIL, "stale-read", {"key": name}, error)
            return False, None
        told = {"key": name, "value": None if found is None else found.value}
        self._complete(Type.OK, "stale-read", told)
        return True, found

    async def _create(self, name: str) -> Type:
        value = self._slots.new_value()
        replicas = self._slots.replication_factor(self._replication_factor)
        asked = {"key": name, "expected": None, "value": value}

        async def act() -> bool:
            await registers.create(
                self._cluster,
                name,
                value,
                replication_factor=replicas,
                deadline=_deadline(),
            )
            return True

        return await self._perform("cas", asked, act)

    async def _change(self, name: str, found: Found) -> None:
        value = self._slots.new_value()
        asked = {"key": name, "expected": found.value, "value": value}
        await self._perform("cas", asked, lambda: self._swap(found, value))

    async def _confirm(self, name: str, found: Found) -> Type:
        told = {"key": name, "value": found.value}
        return await self._perform(
            "read", {"key": name}, lambda: self._swap(found, found.value), told
        )

    async def _delete(self, name: str, found: Found) -> None:
        async def act() -> bool:
            await registers.delete(self._cluster, found, deadline=_deadline())
            return True

        kind = await self._perform("write", {"key": name, "value": None}, act)
        if kind is Type.OK:
            self._slots.on_deleted(name)
        else:
            self._slots.on_spared(name)

    async def _swap(self, found: Found, value: int) -> bool:
        return await registers.swap(self._cluster, found, value, deadline=_deadline())

    # -- the history -----------------------------------------------------------------------

    async def _perform(
        self,
        f: str,
        asked: dict[str, Any],
        act: Callable[[], Awaitable[bool]],
        told: dict[str, Any] | None = None,
    ) -> Type:
        """Do it, and record it. `act` returns False for "the value is another one"."""
        self._recorder.invoke(self._number, f, asked)
        error: RaftmqError | None = None
        try:
            kind = Type.OK if await act() else Type.FAIL
        except RaftmqError as failure:
            kind, error = (Type.FAIL if failure.definite else Type.INFO), failure
        self._complete(kind, f, told if told and kind is Type.OK else asked, error)
        self.is_over = self.is_over or kind is Type.INFO
        return kind

    def _complete(
        self, kind: Type, f: str, told: dict[str, Any], error: RaftmqError | None = None
    ) -> None:
        text = None if error is None else error_text(error)
        self._recorder.record(self._number, kind, f, told, error=text)


def _deadline() -> float:
    return trio.current_time() + SECONDS_MAX
