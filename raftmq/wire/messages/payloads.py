"""The payload of Produce and of the replies to fetches: the batches of several partitions in a row.

Knows where one partition's batches end and the next one's begin, not what is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence


def split_payload(lengths: Sequence[int], payload: bytes | memoryview) -> list[memoryview]:
    """One view of `payload` for each of `lengths`, in order; nothing is copied.

    Raises:
        RemoteProtocolError: the lengths do not add up to the payload.
    """
    view = memoryview(payload)
    if sum(lengths) != len(view):
        raise RemoteProtocolError(
            f"payload of {len(view)} bytes, its {len(lengths)} partitions have {sum(lengths)}"
        )
    views, position = [], 0
    for length in lengths:
        views.append(view[position : position + length])
        position += length
    return views
