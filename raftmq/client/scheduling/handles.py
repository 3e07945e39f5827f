"""`ScheduleHandle`: names one scheduled record, for a cancel, in a program and on a screen."""

from __future__ import annotations

import re
from typing import NamedTuple

from raftmq.errors import InvalidRequest
from raftmq.wire.bodies import ID_BYTES, ID_MAX, NUMBER_MAX
from raftmq.words import kind_of

_TEXT = re.compile(rf"([0-9a-fA-F]{{{2 * ID_BYTES}}}):([0-9]{{1,10}}):([0-9]{{1,19}})", re.ASCII)


class ScheduleHandle(NamedTuple):
    """Of one scheduled record. It stays good, also where the record is moved in the log, until the
    record is delivered or cancelled. `str(handle)` is a text for people; `parse` reads it.

    Attributes:
        topic_id: 16 bytes: a topic that is made anew under the same name has another one.
        partition: its number.
        offset: of the record as it was sent.
    """

    topic_id: bytes
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()}:{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> ScheduleHandle:
        """The handle that `str` has written.

        Raises:
            InvalidRequest: the text is none. Definite.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"a handle is {kind_of(text)}, expected the text of one")
        found = _TEXT.fullmatch(text)
        if found is None or int(found[2]) > ID_MAX or int(found[3]) > NUMBER_MAX:
            raise InvalidRequest(
                f"{text[:100]!r} is no handle of a scheduled record: expected TOPIC_ID:PARTITION:"
                "OFFSET, as `raftmq topic scheduled` prints it"
            )
        return cls(bytes.fromhex(found[1]), int(found[2]), int(found[3]))

    def check(self) -> None:
        """Raises InvalidRequest: it was made by hand, of something else. Definite."""
        is_id = isinstance(self.topic_id, bytes) and len(self.topic_id) == ID_BYTES
        numbers = ((self.partition, ID_MAX), (self.offset, NUMBER_MAX))
        if not is_id or not all(type(one) is int and 0 <= one <= top for one, top in numbers):
            raise InvalidRequest(
                f"{tuple(self)!r} is no handle of a scheduled record: expected {ID_BYTES} bytes of"
                " the topic's id, a partition and an offset, as `schedule_handle` has them"
            )
