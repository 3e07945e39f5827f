"""The load, one program for all peers, in the environment of the peer: only the client differs.

    PYTHON -P -m benchmarks.peers.load '{"peer": "nats", "addresses": [...], ...}'

Prints one line of JSON: the figures by name. Latency counts from when a record was due, by a timer
of the kernel: event loops round what they wait for up to whole milliseconds. How much later than
due a record was sent is a figure of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from benchmarks.peers.known import PEERS
from benchmarks.peers.peer import Client, Reading, Stream
from benchmarks.peers.servers import machine_cpu_seconds, usage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECORD_BYTES = 1024
WHOLE_SECONDS_MAX = 90.0  # until all replicas of the new stream are there
DONE_SECONDS_MAX = 60.0  # until the last acknowledgement
LOOK_SECONDS = 0.01
SETTLE_SECONDS = 0.3
SECONDS_MIN = 0.5  # of a case, however small the scale
ALONE_SECONDS, PRODUCE_SECONDS = 2.5, 2.5
RATES = ((100, 4.0), (1000, 3.0))  # records a second, seconds
UNCOUNTED_SECONDS = 0.5  # of the beginning of a schedule
READ_MAX = 200_000
CLOCK_MONOTONIC, TFD_NONBLOCK, TFD_TIMER_ABSTIME = 1, os.O_NONBLOCK, 1
LOOKS_AT_CLOCK = 64  # of records produced, one


class Job(NamedTuple):
    """What to do. `scale`: of the seconds of all cases."""

    peer: str
    addresses: Sequence[str]
    process_ids: Sequence[int]
    is_synced: bool
    scale: float
    warm_up_seconds: float

    def seconds(self, seconds: float) -> float:
        return max(SECONDS_MIN, seconds * self.scale)


class Timer:
    """Readable each time that a record is due. The clock is that of `time.monotonic`."""

    def __init__(self, begin: float, period: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)  # the os module has these from Python 3.13 on
        self._descriptor = libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        setting = struct.pack("qqqq", *_parts(period), *_parts(begin))
        libc.timerfd_settime(self._descriptor, TFD_TIMER_ABSTIME, setting, None)

    async def wait(self) -> int:
        """How many have come due since the last time, at least one."""
        await anyio.wait_readable(self._descriptor)
        return int.from_bytes(os.read(self._descriptor, 8), sys.byteorder)

    def close(self) -> None:
        os.close(self._descriptor)


def _parts(seconds: float) -> tuple[int, int]:
    whole = int(seconds)
    return whole, int((seconds - whole) * 1e9)


class Scheduled(NamedTuple):
    """Seconds: from due to acknowledged, from due to sent."""

    latencies: list[float]
    lateness: list[float]


async def run_schedule(
    client: Client, value: bytes, *, per_second: int, seconds: float
) -> Scheduled:
    """One record each time that one is due, however late those before are."""
    uncounted = int(UNCOUNTED_SECONDS * per_second)
    total = uncounted + int(seconds * per_second)
    begin, scheduled, errors = time.monotonic() + 0.1, Scheduled([], []), list[object]()
    times = list[tuple[int, float]]()  # of acknowledgements

    def send(number: int) -> None:
        def done(error: object) -> None:
            times.append((number, time.monotonic()))
            if error is not None:
                errors.append(error)

        if number >= uncounted:
            scheduled.lateness.append(time.monotonic() - begin - number / per_second)
        client.send_soon(value, done)

    timer, sent = Timer(begin, 1 / per_second), 0
    while sent < total:
        for _ in range(min(await timer.wait(), total - sent)):
            send(sent)
            sent += 1
    timer.close()
    with anyio.fail_after(DONE_SECONDS_MAX):
        while len(times) < total:  # noqa: ASYNC110  # some are told by another thread
            await anyio.sleep(LOOK_SECONDS)
    assert not errors, f"{len(errors)} of {total} records failed: {errors[0]!r}"
    scheduled.latencies.extend(
        at - begin - number / per_second for number, at in times if number >= uncounted
    )
    return scheduled


async def send_alone(client: Client, value: bytes, *, seconds: float) -> list[float]:
    """One record after the other; the seconds of each."""
    latencies, now = list[float](), time.monotonic()
    end = now + seconds
    while now < end:
        began = now
        await client.send(value)
        now = time.monotonic()
        latencies.append(now - began)
    return latencies


class Supply:
    """Values for so many seconds. Attributes:
    count: of those that were taken.
    """

    def __init__(self, value: bytes, seconds: float) -> None:
        self._value, self._seconds = value, seconds
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            for _ in range(LOOKS_AT_CLOCK):
                self.count += 1
                yield self._value


async def produce(client: Client, value: bytes, *, seconds: float) -> tuple[int, float]:
    """Records, and seconds until all are acknowledged."""
    supply, began = Supply(value, seconds), time.monotonic()
    await client.send_many(iter(supply))
    return supply.count, time.monotonic() - began


# -- the cases ---------------------------------------------------------------------------------


async def measure(job: Job, client: Client) -> dict[str, Any]:
    value = os.urandom(RECORD_BYTES // 2).hex().encode()
    await wait_whole(client)
    await produce(client, value, seconds=job.warm_up_seconds / 2)
    await run_schedule(client, value, per_second=1000, seconds=job.warm_up_seconds / 2)
    await settle()
    figures, before = dict[str, Any](), _Used(job)
    alone = await send_alone(client, value, seconds=job.seconds(ALONE_SECONDS))
    figures.update(percentiles("alone", alone))
    for per_second, seconds in RATES:
        await settle()
        cpu_before = usage_of(job.process_ids).cpu_seconds
        scheduled = await run_schedule(
            client, value, per_second=per_second, seconds=job.seconds(seconds)
        )
        cpu_seconds = usage_of(job.process_ids).cpu_seconds - cpu_before
        records = len(scheduled.latencies) * (1 + UNCOUNTED_SECONDS / job.seconds(seconds))
        figures.update(percentiles(f"rate_{per_second}", scheduled.latencies))
        figures.update(percentiles(f"late_{per_second}", scheduled.lateness))
        figures[f"rate_{per_second}_cpu_ms"] = cpu_seconds / records * 1e3
    await settle()
    count, seconds = await produce(client, value, seconds=job.seconds(PRODUCE_SECONDS))
    figures["produce_s"] = count / seconds
    if not job.is_synced:
        await settle()
        figures["consume_s"] = await consume(client, min(count, READ_MAX))
    return {**figures, **before.since()}


async def consume(client: Client, count: int) -> float:
    """Records a second."""
    reading = Reading(count)
    with anyio.fail_after(DONE_SECONDS_MAX):
        await client.read(reading)
    return reading.per_second()


async def wait_whole(client: Client) -> None:
    """Until the stream is there, with all replicas, and takes records."""
    deadline = time.monotonic() + WHOLE_SECONDS_MAX
    while True:
        try:
            with anyio.fail_after(10):
                await client.prepare()
                return await client.send(b"first")
        except Exception:  # of a cluster that is not ready, each client has its own
            if time.monotonic() > deadline:
                raise
            await anyio.sleep(0.2)


async def settle() -> None:
    """What earlier cases wrote goes to disk now, rather than during the next one."""
    os.sync()
    await anyio.sleep(SETTLE_SECONDS)


class _Used:
    """What the processes of the job, and all others, took of the machine since it was made."""

    def __init__(self, job: Job) -> None:
        self._servers = job.process_ids
        self._before = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        all_ours = usage_of([*self._servers, os.getpid()])
        times = (all_ours.cpu_seconds, all_ours.waited_seconds, machine_cpu_seconds())
        return (*times, time.monotonic())

    def since(self) -> dict[str, float]:
        cpu, waited, machine, wall = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        return {
            "waited_share": waited / (waited + cpu),
            "others_cores": max(0.0, machine - cpu) / wall,
            "servers_mib": usage_of(self._servers).resident_mib,
        }


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {f"{name}_p50_ms": median(ordered) * 1e3, f"{name}_p99_ms": p99 * 1e3}


async def main(job: Job) -> None:
    stream = Stream("synced" if job.is_synced else "plain", job.is_synced)
    async with PEERS[job.peer].connect(job.addresses, stream) as client:
        figures = await measure(job, client)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    given = Job(**json.loads(sys.argv[1]))
    anyio.run(main, given, backend=PEERS[given.peer].backend)
