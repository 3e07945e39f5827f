"""The replicated state machine of the quorum: applies command bytes to the metadata image.

Owns the newest image and the log of recent changes. Knows nothing of Raft: commands come in by
index, results go out. Total: an exception in a rule becomes the same refusal on every node, and
changes nothing, because an image is replaced only by a complete successor. A command of a newer
version of raftmq stops this node instead: skipping it would make its image differ from others.
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
        NewerCommand: this node must stop, and continue at this command after an upgrade.
        """
        try:
            image, result = apply_bytes(self.image, index, command)
        except (MemoryError, NewerCommand):
            raise  # of this node alone: another may have applied it, so it must not be refused here
        except Exception as error:
            # `apply` is deterministic, so every node fails here and stores the same refusal. A node
            # that stopped instead would fail again at each start: the whole quorum would be down.
            logger.exception("index=%d event=apply_failed", index)
            image = self.image._replace(version=index, changes=())
            result = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"a bug in apply: {error!r}")
        if image.feature_level > SUPPORTED_LEVEL:  # what follows may need rules of a newer version
            raise NewerCommand(f"index {index} sets {_unknown_level(image)}")
        self.image = image
        self.changes.add(image)
        return result

    def picture(self) -> Callable[[], Iterator[bytes]]:
        image = self.image
        return lambda: encode_image(image)

    def read_picture(self, slices: Iterable[bytes]) -> MetadataImage:
        image = decode_image(slices)
        if image.feature_level > SUPPORTED_LEVEL:  # written by a newer version: see `apply`
            raise CorruptJournal(
                f"the snapshot of version {image.version} is at {_unknown_level(image)}"
            )
        return image

    def install(self, index: int, decoded: object) -> None:
        # The version may be below the index: some entries of the log are no commands.
        if not isinstance(decoded, MetadataImage) or decoded.version > index:
            raise CorruptJournal(f"the snapshot of index {index} holds something else")
        self.image = decoded
        self.changes.reset(decoded)


def _unknown_level(image: MetadataImage) -> str:
    return (
        f"feature level {image.feature_level}, this node knows levels up to {SUPPORTED_LEVEL}:"
        " upgrade it"
    )
