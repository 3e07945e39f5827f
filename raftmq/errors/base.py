"""The base of all errors: what every one of them says."""

from __future__ import annotations

import re
from typing import ClassVar, Self

from raftmq.error_numbers import ErrorCode


class RaftmqError(Exception):
    """Base of the tree; `str()` names the thing and, where there is one, the way out.

    Attributes:
        topic, partition, broker: which ones it is about; None where that is not known.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None

    def __init_subclass__(cls) -> None:
        """All are known by the place from which programs import them."""
        super().__init_subclass__()
        cls.__module__ = "raftmq.errors"

    def __str__(self) -> str:
        text = super().__str__()
        if self.topic is None:
            return text
        where = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        is_told = re.search(rf"(?<![\w.-]){re.escape(where)}(?![\w.-])", text)
        return text if is_told else f"{where}: {text}"

    def at(self, topic: str, partition: int | None = None) -> Self:
        """The same error, of one topic or partition: a failed request may have been about many."""
        copy = self.copied()
        copy.topic, copy.partition = topic, partition
        return copy

    def copied(self) -> Self:
        """To be raised once more, by somebody else: each has its own traceback and notes."""
        copy = type(self).__new__(type(self))
        copy.args = self.args
        copy.__dict__.update(self.__dict__)
        if "__notes__" in copy.__dict__:  # a note on the copy is none on the original
            copy.__notes__ = list(copy.__notes__)
        copy.__cause__ = self.__cause__
        return copy
