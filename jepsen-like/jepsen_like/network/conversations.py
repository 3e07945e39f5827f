"""The last header of every TCP connection, so that the switch can reset idle connections as well.

Pure. Keeps one header per connection and direction, the most recently used ones up to a limit. It
is called for every frame, so noting one is a handful of slices.
"""

from __future__ import annotations

from jepsen_like.network.frames import (
    HEADERS_BYTES,
    RST,
    flags_of,
    is_tcp,
    reset_source,
    reset_target,
)

KEPT_MAX = 10_000  # far more than a run has connections; bounds the memory of long runs
_UP_TO_SEQUENCE = 42  # bytes of a frame: addresses, ports, and the sequence number


class Conversations:
    def __init__(self, *, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        # By both addresses and both ports as they stand in a frame; least recently used first.
        self._last: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        """Directions that are known: two of a connection in which both ends have spoken."""
        return len(self._last)

    def note(self, frame: bytes) -> None:
        """This frame was delivered, or will be."""
        if not is_tcp(frame):
            return
        key = frame[26:38]
        self._last.pop(key, None)
        if flags_of(frame) & RST:
            self._last.pop(_turn(key), None)
            return
        self._last[key] = frame[:HEADERS_BYTES]
        if len(self._last) > self._kept_max:
            del self._last[next(iter(self._last))]

    def reset(self, one: bytes, other: bytes) -> list[bytes]:
        """RSTs for both ends of everything that is known between two hardware addresses.

        Where both directions are known, there are two numbers for each end: the one that its peer
        last sent up to, and the one that it asked for itself. They differ while something is
        unacknowledged or was lost. Only the right one is believed, so then both are sent.
        """
        resets: dict[bytes, bytes] = {}
        for key, header in list(self._last.items()):
            if {header[:6], header[6:12]} == {one, other}:
                del self._last[key]
                for reset in (reset_target(header, is_delivered=True), reset_source(header)):
                    if reset is not None:
                        resets[reset[:_UP_TO_SEQUENCE]] = reset
        return list(resets.values())


def _turn(key: bytes) -> bytes:
    return key[4:8] + key[:4] + key[10:12] + key[8:10]
