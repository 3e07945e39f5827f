"""A block in which a program works on what it was handed out, for long or beside the iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from raftmq.client.consumer.tenure import known_tenure

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from raftmq.client.consumer.in_hand import InHand
    from raftmq.client.consumer.tenure import Work


class Processing:
    """What `Consumer.processing` returns, for a `with` block."""

    def __init__(
        self,
        in_hand: InHand,
        work: Work,
        on_begun: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        """Raises InvalidRequest: a copy of what was handed out."""
        known_tenure(work)
        self._in_hand, self._work = in_hand, work
        self._on_begun, self._on_ended = on_begun, on_ended
        self._token: int | None = None

    def __enter__(self) -> Self:
        assert self._token is None, "entered twice"
        self._token = self._in_hand.hold(self._work)
        self._on_begun()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None, "left before it was entered"
        self._in_hand.release(self._token, is_finished=error is None)
        self._on_ended()
