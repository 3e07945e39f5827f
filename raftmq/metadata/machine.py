"""The metadata as a state machine that the quorum replicates.

Owns the newest image and the log of recent changes. Knows nothing of Raft: bytes come in by
index, answers go out. Total: a command that breaks a rule's code is refused on every node alike,
which changes nothing, because an image is only replaced when its successor is complete. What only
a newer version of raftmq understands ends this node instead: it would not know what others know.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftmq.errors import CorruptJournal, ErrorCode, NewerCommand
from raftmq.metadata.apply import apply_bytes
from raftmq.metadata.commands import SUPPORTED_LEVEL, Refused
from raftmq.metadata.delta import ChangeLog
from raftmq.metadata.image import EMPTY_IMAGE, MetadataImage
from raftmq.metadata.snapshot import decode_image, encode_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from raftmq.metadata.commands import AnyResult

logger = logging.getLogger("raftmq.metadata")


class MetadataMachine:
    """Attributes:
    image: after the last applied command.
    changes: what recent commands touched.
    """

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self.changes = ChangeLog()

    def apply(self, index: int, command: bytes) -> AnyResult:
        """Raises:
        NewerCommand: this node must stop, and go on here once it was upgraded.
        """
        try:
            image, result = apply_bytes(self.image, index, command)
        except (MemoryError, NewerCommand):
            raise  # this node's own trouble: another one may have applied it
        except Exception as error:
            logger.exception("index=%d event=apply_failed", index)
            image = self.image._replace(version=index, changes=())
            result = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"a bug in apply: {error!r}")
        if image.feature_level > SUPPORTED_LEVEL:
            raise NewerCommand(f"index {index} sets {_unknown_level(image)}")
        self.image = image
        self.changes.add(image)
        return result

    def picture(self) -> Callable[[], Iterator[bytes]]:
        image = self.image
        return lambda: encode_image(image)

    def read_picture(self, slices: Iterable[bytes]) -> MetadataImage:
        image = decode_image(slices)
        if image.feature_level > SUPPORTED_LEVEL:
            raise CorruptJournal(
                f"the snapshot of version {image.version} is at {_unknown_level(image)}"
            )
        return image

    def install(self, index: int, decoded: object) -> None:
        if not isinstance(decoded, MetadataImage) or decoded.version > index:
            raise CorruptJournal(f"the snapshot of index {index} holds something else")
        self.image = decoded
        self.changes.reset(decoded)


def _unknown_level(image: MetadataImage) -> str:
    return (
        f"feature level {image.feature_level}, this node knows levels up to {SUPPORTED_LEVEL}:"
        " upgrade it"
    )
