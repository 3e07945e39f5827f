"""A group member's connection, recording each offset commit and fetch, and cut or delayed at will.

Owns the outcome of an attempt to commit, or to fetch: one request is one attempt, and the error
alone says whether it may have happened. The SDK above retries as it likes, and only here its single
attempts can be seen.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.keys import key_of
from jepsen_like.workloads.sending import error_text
from raftmq.client.client import parse_bootstrap
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import RaftmqError, error_for
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetCommitReply, OffsetFetch
from raftmq.wire.messages.groups import (
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from jepsen_like.history.recorder import Recorder
    from raftmq.client.network.network import AnyioNetwork
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.group_offsets import (
        FetchedOffset,
        OffsetFetchReply,
        OffsetToCommit,
    )

LATE_SECONDS_MAX = 2.0  # for what was held up
OF_MEMBERS = (
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
)


class Notes:
    """Where attempts are taken down, and how.

    Args:
        names: of topics, by id; may grow.
        keys: of each group: those without an offset in a fetch of all are not committed.
    """

    def __init__(
        self,
        recorder: Recorder,
        names: Mapping[bytes, str],
        keys: Mapping[str, Sequence[str]],
    ) -> None:
        self._recorder, self._names, self._keys = recorder, names, keys
        self._numbers = count()

    def begin(self, process: str, request: OffsetCommit | OffsetFetch) -> Attempt:
        number = next(self._numbers)
        asked: dict[str, Any] = {"number": number, "group": request.group}
        if isinstance(request, OffsetCommit):
            asked |= {"member_id": request.member_id, "generation": request.generation}
            asked["offsets"] = self._told(request.partitions)
            f = "commit"
        else:
            f = "committed"
        self._recorder.invoke(process, f, asked)
        return Attempt(self, process, f, number, request)

    def end(self, attempt: Attempt, kind: Type, error: str | None, **told: object) -> None:
        value = {"number": attempt.number, **told}
        self._recorder.record(attempt.process, kind, attempt.f, value, error=error)

    def fetched(self, request: OffsetFetch, reply: OffsetFetchReply) -> list[list[Any]]:
        told = dict(self._told(reply.partitions))
        if request.partitions is None:
            told = dict.fromkeys(self._keys[request.group], ABSENT) | told
        return [[key, None if offset == ABSENT else offset] for key, offset in told.items()]

    def _told(self, partitions: Iterable[OffsetToCommit | FetchedOffset]) -> list[tuple[str, int]]:
        names = self._names
        return [
            (key_of(names.get(one.topic_id, one.topic_id.hex()), one.partition), one.offset)
            for one in partitions
        ]


class Attempt:
    """One request that is under way."""

    def __init__(
        self,
        notes: Notes,
        process: str,
        f: str,
        number: int,
        request: OffsetCommit | OffsetFetch,
    ) -> None:
        self._notes, self._request = notes, request
        self.process, self.f, self.number = process, f, number

    def on_answer(self, reply: OffsetCommitReply | OffsetFetchReply) -> None:
        if isinstance(reply, OffsetCommitReply):
            self._on_committed(reply)
        else:
            assert isinstance(self._request, OffsetFetch), f"{reply} to {self._request}"
            self._on_fetched(self._request, reply)

    def on_nothing(self, error: RaftmqError | None) -> None:
        """None: the caller was cancelled."""
        if error is None:
            self._notes.end(self, Type.INFO, "cancelled")
        else:
            kind = Type.FAIL if error.definite else Type.INFO
            self._notes.end(self, kind, error_text(error))

    def _on_fetched(self, request: OffsetFetch, reply: OffsetFetchReply) -> None:
        if reply.error:
            told = error_text(error_for(reply.error, reply.message))
            self._notes.end(self, Type.FAIL, told)
        else:
            self._notes.end(self, Type.OK, None, offsets=self._notes.fetched(request, reply))

    def _on_committed(self, reply: OffsetCommitReply) -> None:
        """It is done if all of it is, and failed if nothing of it may be."""
        codes = [one.error for one in reply.partitions if one.error]
        errors = [error_for(code, "a partition") for code in codes]
        if reply.error:
            errors = [error_for(reply.error, reply.message)]
        if not errors:
            self._notes.end(self, Type.OK, None)
            return
        is_whole = bool(reply.error) or len(codes) == len(reply.partitions)
        is_definite = is_whole and all(error.definite for error in errors)
        kind = Type.FAIL if is_definite else Type.INFO
        self._notes.end(self, kind, error_text(errors[0]))


class WitnessedCluster(Cluster):
    """Attributes:
    is_dead: nothing leaves it any more: its program has crashed.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        notes: Notes,
        process: str,
        *,
        random: Random,
        network: AnyioNetwork | None = None,
    ) -> None:
        """`network`: in place of this machine's."""
        addresses = parse_bootstrap(bootstrap)
        super().__init__(addresses, network or AnyioTcpNetwork(), random=random, client_id=process)
        self._notes, self._process = notes, process
        self._silent_until = 0.0
        self.is_dead = False

    def mute(self, seconds: float) -> None:
        """Its group requests arrive late, while it reads on. Commits arrive even if their caller
        was cancelled: the network still delivers them.
        """
        self._silent_until = trio.current_time() + seconds

    async def ask(
        self, broker_id: int, body: Request, payload: Sequence[Buffer] = (), *, deadline: float
    ) -> Answer:
        if not self.is_dead and not isinstance(body, OF_MEMBERS):
            return await super().ask(broker_id, body, payload, deadline=deadline)
        if isinstance(body, OffsetCommit) and trio.current_time() < self._silent_until:
            return await self._commit_late(broker_id, body)
        await self._wait_heard()
        if isinstance(body, OffsetCommit | OffsetFetch):
            answer = await self._ask_noted(broker_id, body, deadline=deadline)
        else:
            answer = await super().ask(broker_id, body, payload, deadline=deadline)
        await self._wait_heard()
        return answer

    async def _ask_noted(
        self, broker_id: int, body: OffsetCommit | OffsetFetch, *, deadline: float
    ) -> Answer:
        attempt = self._notes.begin(self._process, body)
        try:
            answer = await super().ask(broker_id, body, deadline=deadline)
        except RaftmqError as error:
            attempt.on_nothing(error)
            raise
        except BaseException:
            attempt.on_nothing(None)
            raise
        attempt.on_answer(answer.body)
        return answer

    async def _commit_late(self, broker_id: int, body: OffsetCommit) -> Answer:
        """The caller gets no answer before, either."""
        assert self._tasks is not None, "not open"
        told: list[Answer | RaftmqError] = []
        is_told = trio.Event()

        async def send() -> None:
            await self._wait_heard()
            deadline = trio.current_time() + LATE_SECONDS_MAX
            try:
                told.append(await self._ask_noted(broker_id, body, deadline=deadline))
            except RaftmqError as error:
                told.append(error)
            is_told.set()

        self._tasks.start_soon(send)
        await is_told.wait()
        if isinstance(told[0], RaftmqError):
            raise told[0]
        return told[0]

    async def _wait_heard(self) -> None:
        if self.is_dead:
            await trio.sleep_forever()
        while trio.current_time() < self._silent_until:  # noqa: ASYNC110  # it may be put off
            await trio.sleep_until(self._silent_until)
