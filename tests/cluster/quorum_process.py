"""One quorum process: what it is ordered, and what it tells, as words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.cluster.node_process import NodeProcess
from tests.cluster.quorum_words import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.cluster.quorum_words import AnyTold, Order


class QuorumProcess(NodeProcess):
    """`hear` is called in the thread that reads."""

    def __init__(
        self,
        order: Order,
        *,
        hear: Callable[[AnyTold], None],
        on_end: Callable[[], None],
        under: Sequence[str] = (),
    ) -> None:
        super().__init__(
            order.node_id,
            [*under, sys.executable, "-m", "tests.cluster.quorum_node", *order.arguments()],
            hear=lambda line: hear(decode(line)),
            on_end=on_end,
        )
