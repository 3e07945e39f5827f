"""Errors of the disk."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class StorageError(RaftmqError):
    """A file operation failed. Indefinite: bytes of a failed write may be found after a restart."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True
    refresh_metadata = True
    definite = False


class DirectoryInUse(StorageError):
    definite = True
    retriable = False
    refresh_metadata = False


class CorruptJournal(StorageError):
    """The node must stay out of the quorum; the message says what is damaged and the way back."""

    definite = True
    retriable = False
    refresh_metadata = False
