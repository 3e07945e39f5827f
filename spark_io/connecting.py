"""A connection for one task, tried again while no broker answers."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from raftmq import sync
from spark_io.retries import retried

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def connected(
    bootstrap: Sequence[str], client_id: str, seconds_max: float, *, option: str | None = None
) -> Iterator[sync.Client]:
    """
    Args:
        option: by which a user chooses `seconds_max`; None: nobody does.

    Raises:
        RaftmqError: by then nobody has answered.
    """

    def connect() -> sync.Client:  # a client is opened once
        return stack.enter_context(sync.connect(list(bootstrap), client_id=client_id))

    with ExitStack() as stack:
        yield retried(connect, seconds_max, option=option)
