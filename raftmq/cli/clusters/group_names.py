"""A group that is not there: which one may be meant, and where to look."""

from __future__ import annotations

from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

from raftmq.errors import GroupIdNotFound, RaftmqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.client.administration.admin import Admin

LIST_SECONDS_MAX = 2.0  # for a hint


@asynccontextmanager
async def hinting(admin: Admin, name: str) -> AsyncIterator[None]:
    """Whoever has mistyped a name is told what there is."""
    try:
        yield
    except GroupIdNotFound as error:
        raise GroupIdNotFound(f"{error}{await _hint(admin, name)}") from error


async def _hint(admin: Admin, name: str) -> str:
    try:
        known = [one.name for one in await admin.with_timeout(LIST_SECONDS_MAX).list_groups()]
    except RaftmqError:
        known = []
    close = get_close_matches(name, known, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ";"
    return f"{meant} `raftmq group list` shows what there is"
