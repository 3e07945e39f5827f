"""How long a partition is a member's own: what was handed out meanwhile bears its mark.

Whatever was handed out before a partition went to somebody else, or before its topic was made anew,
says nothing of how far it is done now. Records bear the mark in their class: one more field of each
would cost something, and programs would see it.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from raftmq.client.consumer.batch import ConsumedBatch, ConsumerRecord
from raftmq.client.group.effects import Cause
from raftmq.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

Work: TypeAlias = ConsumedBatch | ConsumerRecord


class Tenure:
    """Attributes:
    topic_id: of the topic that is read; None: nobody has said so yet.
    cause: once it is over, why.
    """

    def __init__(self, topic_id: bytes | None = None) -> None:
        self.topic_id, self.cause = topic_id, Cause.OTHER

    @cached_property
    def new_record(self) -> Callable[[Any], ConsumerRecord]:
        """Makes a record of its columns, without a Python frame for each."""
        kind = type(
            ConsumerRecord.__name__,
            (ConsumerRecord,),
            {
                "__slots__": (),
                "__module__": ConsumerRecord.__module__,
                "__reduce__": _as_plain,
                "tenure": self,
            },
        )
        return cast("Callable[[Any], ConsumerRecord]", partial(cast("Any", tuple.__new__), kind))


def tenure_of(work: Work) -> Tenure | None:
    """In which it was handed out; None: not by a member of a group, or it is a copy."""
    found: Tenure | None = getattr(work, "tenure", None)
    return found


def known_tenure(work: Work) -> Tenure:
    """Raises InvalidRequest: nobody knows when that was handed out."""
    found = tenure_of(work)
    if found is None:
        raise InvalidRequest(
            f"{type(work).__name__} of {work.topic}-{work.partition}: not handed out by a member "
            "of a group, or copied since; give the one that was handed out itself"
        )
    return found


def _as_plain(record: ConsumerRecord) -> tuple[type[ConsumerRecord], tuple[Any, ...]]:
    """In another process nobody knows of tenures."""
    return ConsumerRecord, tuple(record)
