"""The member processes of a group: who there is, what was done to whom, and what they wrote down.

Owns the processes, their log files, and when they were struck, by the clock that they use, too.
A member that was replaced is another one, with a number and a log file of its own.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from typing import TYPE_CHECKING

from tests.cluster.group_ownership import Blow, Struck
from tests.cluster.group_words import READY, STOP, MemberOrder, decode_log
from tests.cluster.node_process import NodeFailed, NodeProcess
from tests.cluster.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.cluster.group_words import AnyWord

MEMBER = ("tests.cluster.group_member",)


class MemberProcess(NodeProcess):
    """Attributes:
    is_ready: it has opened its consumer.
    """

    def __init__(
        self,
        number: int,
        order: MemberOrder,
        *,
        on_news: Callable[[], None],
        program: Sequence[str],
    ) -> None:
        self.is_ready = False
        self._on_news = on_news
        command = [sys.executable, "-m", *program, *order.arguments()]
        super().__init__(number, command, hear=self._hear_line, on_end=on_news)

    def _hear_line(self, line: bytes) -> None:
        assert line == READY, line
        self.is_ready = True
        self._on_news()


class Members(Nodes[MemberProcess]):
    """Attributes:
    struck: what was done to them, those that are stopped now left out.
    orders: of all that ever were.
    """

    def __init__(
        self, folder: Path, *, program: Callable[[int], Sequence[str]] = lambda _: MEMBER
    ) -> None:
        """`program`, behind `python -m`, goes by the member's number."""
        super().__init__()
        self._folder, self._numbers, self._program = folder, count(1), program
        self._stopped_at: dict[int, float] = {}
        self.struck: list[Struck] = []
        self.orders: dict[int, MemberOrder] = {}

    def start(self, order: MemberOrder) -> int:
        """`order.log` is filled in; the number of the new member."""
        number = next(self._numbers)
        order = order._replace(log=str(self._folder / f"member-{number}.log"))
        self.orders[number] = order
        self._processes[number] = MemberProcess(
            number, order, on_news=self._on_news, program=self._program(number)
        )
        return number

    def wait_ready(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            process = self._processes[number]
            self.wait(f"member {number} to be open", lambda process=process: process.is_ready)

    @property
    def stopped(self) -> list[int]:
        return sorted(self._stopped_at)

    def strike_down(self, number: int) -> None:
        began_at = time.monotonic()
        self.kill([number])
        self.struck.append(Struck(number, Blow.KILLED, began_at, time.monotonic()))

    def stop(self, number: int) -> None:
        self._stopped_at[number] = time.monotonic()
        self.pause([number])

    def go_on(self, number: int) -> None:
        began_at, ended_at = self._stopped_at.pop(number), time.monotonic()
        self.resume([number])
        self.struck.append(Struck(number, Blow.STOPPED, began_at, ended_at))

    def leave(self, numbers: Iterable[int]) -> None:
        """In order; over when they have ended."""
        numbers, began_at = list(numbers), time.monotonic()
        self.expect_end(numbers)
        for number in numbers:
            self._processes[number].say(STOP)
        for number in numbers:
            ending = self.wait_end(number)
            if ending.status != 0:
                raise NodeFailed(f"member {number} left with {ending}")
            self.struck.append(Struck(number, Blow.LEFT, began_at, time.monotonic()))

    def logs(self) -> dict[int, list[AnyWord]]:
        """Of all that ever were."""
        return {number: _read(self._folder / f"member-{number}.log") for number in self.orders}


def _read(path: Path) -> list[AnyWord]:
    """Killed before it began, it has written nothing."""
    return decode_log(path.read_bytes()) if path.exists() else []
