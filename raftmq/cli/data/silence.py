"""Why nothing comes: told on stderr by a command that would otherwise wait without a word.

The consumer tries again for ever, and rightly so; whoever looks at it wants to know that it does.
Where nothing comes for a while the leaders are asked the simplest question. If they answer, nothing
is there to be read, and nothing is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import click

from raftmq.cli.exits import ExitCode, exit_code_of
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.client.administration.admin import Admin

SILENT_SECONDS = 5.0
ANSWER_SECONDS_MAX = 3.0


async def explain_silence(
    admin: Admin, topics: Sequence[str], partitions: Sequence[int], taken: Callable[[], int]
) -> None:
    """Until it is cancelled; each reason once, until it changes or is gone.

    Args:
        partitions: none: all.
        taken: grows with whatever comes.
    """
    admin = admin.with_timeout(ANSWER_SECONDS_MAX)
    said, last = "", taken()
    while True:
        await anyio.sleep(SILENT_SECONDS)
        is_silent, last = taken() == last, taken()
        reason = await _reason(admin, topics, partitions) if is_silent else ""
        if reason and reason != said:
            click.echo(f"raftmq: waiting: {' '.join(reason.split())}", err=True)
        said = reason


async def _reason(admin: Admin, topics: Sequence[str], partitions: Sequence[int]) -> str:
    """What keeps records from coming; what does not pass by waiting, the consumer tells itself."""
    for topic in topics:
        try:
            await admin.offsets(topic, "latest", partitions=partitions or None)
        except RaftmqError as error:
            if exit_code_of(error) is ExitCode.UNREACHABLE:
                return str(error)
    return ""
