"""All limits of a connection in one place, those of servers and of those who ask them.

Pure. What is over a limit is refused with an error that names it, or it waits; nothing grows.
A connection holds at most `bytes_in_flight_max`, one frame and one read.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.errors import InvalidConfig

BROKER_CONNECTIONS_MAX = 256  # on the listener for brokers: one or two from each
# Of a process: listeners, connections of brokers, the quorum with its guests and strangers.
OTHER_DESCRIPTORS = 640
CONNECTIONS_LEAST = 16
FRAME_BYTES_LEAST = 1024  # less would not hold a Hello
FRAME_BYTES_MOST = (1 << 31) - 1  # what a Hello can tell


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Attributes:
    frame_bytes_max: of a frame, either way.
    header_bytes_max: of its header, that is, of all but records.
    requests_in_flight_max: per connection, requests whose answer has not left yet.
    bytes_in_flight_max: per connection, of these requests and of answers that wait to leave.
    patient_requests_max: per connection, requests that wait for others and are not counted above.
    connections_max: of a server, by clients; more are closed at once. Brokers have places apart.
    unhandled_bytes_max: of a server, of requests that are not whole, or not handled yet: of all
        clients together, and as much of all brokers; one frame may be over it.
    hello_seconds_max: from the beginning of a connection to the end of its Hello.
    idle_seconds_max: a server hangs up on whoever asks nothing for so long.
    ping_seconds: so long after the last sign of life a channel asks for another.
    silence_seconds_max: a channel hangs up on a server that gives no sign of life for so long.
    stall_seconds_max: either side hangs up on one that takes nothing for so long.
    """

    frame_bytes_max: int = 64 << 20
    header_bytes_max: int = 2 << 20  # a metadata command may have 1 MiB, and there is more in it
    requests_in_flight_max: int = 128
    bytes_in_flight_max: int = 64 << 20
    patient_requests_max: int = 10_000
    connections_max: int = 10_000
    unhandled_bytes_max: int = 256 << 20
    hello_seconds_max: float = 10.0
    idle_seconds_max: float = 600.0
    ping_seconds: float = 2.0
    silence_seconds_max: float = 8.0
    stall_seconds_max: float = 30.0

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {value}: must be above 0" for name, value in vars(self).items() if value <= 0
        ]
        if not FRAME_BYTES_LEAST <= self.frame_bytes_max <= FRAME_BYTES_MOST:
            problems.append(
                f"frame_bytes_max = {self.frame_bytes_max}: "
                f"must be from {FRAME_BYTES_LEAST} to {FRAME_BYTES_MOST}"
            )
        if self.header_bytes_max > self.frame_bytes_max:
            problems.append(
                f"header_bytes_max = {self.header_bytes_max}: "
                f"must be at most frame_bytes_max = {self.frame_bytes_max}"
            )
        if self.ping_seconds >= self.silence_seconds_max:
            problems.append(
                f"ping_seconds = {self.ping_seconds:g}: "
                f"must be below silence_seconds_max = {self.silence_seconds_max:g}"
            )
        if problems:
            raise InvalidConfig(problems)


def connections_within(descriptors_max: int, *, wanted: int, logs: int) -> int:
    """How many connections clients may have, so that disks never lack a descriptor.

    Args:
        descriptors_max: of the process.
        logs: that it has now, each with a file open. As many descriptors as connections get are
            left for those that come.
    """
    others = min(OTHER_DESCRIPTORS, descriptors_max // 4)
    spare = descriptors_max - others - logs
    return min(wanted, max(CONNECTIONS_LEAST, spare // 2))
