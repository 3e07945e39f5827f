"""What one server takes: the requests it knows, in which versions, and how much of them. Pure.

Owns the refusals on this side of the connection: whatever is over a limit of the server, or unknown
to it, is an error before anything is sent, and so certainly was not done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import MessageTooLarge, UnsupportedVersion
from raftmq.rpc.reply import payload_length
from raftmq.wire.envelopes import encode_request
from raftmq.wire.frames import LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.rpc.reply import Payload
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import HelloReply


class Offer:
    """Before Hello: anything up to our own limit.

    Args:
        server: its name in errors.
        frame_bytes_max: our own limit.
    """

    def __init__(self, server: str, *, frame_bytes_max: int) -> None:
        self._server, self._frame_bytes_max = server, frame_bytes_max
        self._versions: Mapping[int, range] | None = None

    def on_hello(self, told: HelloReply) -> None:
        self._frame_bytes_max = min(self._frame_bytes_max, told.frame_bytes_max)
        self._versions = {
            found.api_key: range(found.version_min, found.version_max + 1)
            for found in told.api_versions
        }

    def encode(
        self,
        number: int,
        body: Request,
        payload: Payload = (),
        trace: Mapping[str, str] | None = None,
    ) -> bytes:
        """The frame of a request but for its payload.

        Raises:
            MessageTooLarge, UnsupportedVersion: the server would not take it.
        """
        if self._versions is not None:
            self._check_version(body, self._versions)
        length = payload_length(payload) if payload else 0
        head = encode_request(number, body, payload_length=length, trace=trace)
        if len(head) - LENGTH.size + length > self._frame_bytes_max:
            raise MessageTooLarge(
                f"{type(body).__name__}: {len(head) + length} bytes, at most "
                f"{self._frame_bytes_max}: send less at once"
            )
        return head

    def _check_version(self, body: Request, versions: Mapping[int, range]) -> None:
        known = versions.get(body.api_key)
        if known is None or body.version not in known:
            raise UnsupportedVersion(
                f"{type(body).__name__} in version {body.version}: {self._server} does not serve it"
            )
