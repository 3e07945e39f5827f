"""`processing` of the consumer of `raftmq.sync`: a block of the program's thread."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from raftmq.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from raftmq.client.consumer.group_consumption import Processing as AsyncProcessing


class Processing:
    """What `Consumer.processing` returns, for a `with` block. Work that fails is not finished."""

    def __init__(
        self, ask: Callable[[Callable[[], object]], object], block: AsyncProcessing
    ) -> None:
        """`ask` has something done in the loop."""
        self._ask, self._block = ask, block

    def __enter__(self) -> Self:
        self._ask(self._block.__enter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(Closed):  # then nothing is held any more
            self._ask(lambda: self._block.__exit__(kind, error, traceback))
