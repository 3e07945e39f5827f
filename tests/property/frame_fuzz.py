"""Feeds damaged frames to the decoder: python -m tests.property.frame_fuzz --count 1000000

Only RemoteProtocolError and UnsupportedVersion may come out, soon, and within the memory bound;
and what was decoded must not stay in memory. Input number i of a seed follows from seed and i
alone: a failure prints the line that replays it.
"""

from __future__ import annotations

import resource
import sys
import time
import tracemalloc
from collections import Counter
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from raftmq.errors import RemoteProtocolError, UnsupportedVersion
from raftmq.wire.envelopes import decode_reply, decode_request, decode_response
from raftmq.wire.frames import FrameReader
from tests.property.frame_mutations import Sample, corpus, damage
from tests.property.fuzzing import Failure, fuzz

if TYPE_CHECKING:
    from raftmq.wire.bodies import Body
    from raftmq.wire.frames import Frame

FRAME_BYTES_MAX = 64 << 10
HEADER_BYTES_MAX = 32 << 10
SAMPLES_OF_EACH = 5
SECONDS_MAX = 0.1
MEMORY_EVERY = 100
MEMORY_FIXED = 64 << 10
MEMORY_PER_BYTE = 32  # a small struct with its numbers takes one byte of a message for each field
GROWTH_EVERY = 50_000
GROWTH_KIB_MAX = 16 << 10
FIRST_INPUTS = 5_000  # after which whatever is made once has been made


def touch_everything(random: Random, sample: Sample) -> str:
    """Receive the stream in two pieces and decode every frame; the name of the outcome."""
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, header_bytes_max=HEADER_BYTES_MAX)
    cut = random.randint(0, len(sample.stream))
    try:
        frames = [*reader.receive(sample.stream[:cut]), *reader.receive(sample.stream[cut:])]
        for frame in frames:
            _decode(frame, sample.reply)
    except (RemoteProtocolError, UnsupportedVersion) as error:
        return _name_of(error)
    assert reader.buffered_bytes <= FRAME_BYTES_MAX + 4
    return "decoded" if frames else "waited for"


def _name_of(error: Exception) -> str:
    assert len(str(error)) < 1_000, "an error that repeats its input"
    return type(error).__name__


def _decode(frame: Frame, reply: type[Body] | None) -> None:
    if reply is None:
        decode_request(frame.header)
    else:
        decode_reply(reply, decode_response(frame.header).body)


def run(*, seed: int, count: int, first: int = 0, progress: bool = False) -> Counter[str]:
    """Outcomes of `count` inputs from number `first` on.

    Raises:
        Failure: at the first input that does what it must not.
    """
    samples = _corpus(seed)
    outcomes: Counter[str] = Counter()
    resident_kib = 0
    for index in range(first, first + count):
        outcomes[_check(index, Random(f"{seed} {index}"), samples)] += 1
        if index - first == FIRST_INPUTS:
            resident_kib = _resident_kib_max()
        if index - first > FIRST_INPUTS and index % GROWTH_EVERY == 0:
            _check_growth(index, resident_kib)
            if progress:
                sys.stderr.write(f"{index} {dict(outcomes)}\n")
    return outcomes


@cache
def _corpus(seed: int) -> list[Sample]:
    return corpus(Random(f"corpus {seed}"), of_each=SAMPLES_OF_EACH)


def _check(index: int, random: Random, samples: list[Sample]) -> str:
    sample = damage(random, samples)
    measured = index % MEMORY_EVERY == 0
    if measured:
        tracemalloc.start()
    # Processor time: what other processes do to the clock is no fault of the input.
    started = time.process_time()
    try:
        outcome = touch_everything(random, sample)
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
    except Exception as error:
        raise Failure(index, f"{type(error).__name__}: {error}") from error
    finally:
        seconds = time.process_time() - started
        tracemalloc.stop()
    if seconds > SECONDS_MAX and not measured:
        raise Failure(index, f"took {seconds:.3f} s")
    allowed = MEMORY_FIXED + MEMORY_PER_BYTE * len(sample.stream)
    if peak > allowed:
        raise Failure(index, f"allocated {peak} bytes, allowed {allowed}")
    return outcome


def _check_growth(index: int, before_kib: int) -> None:
    growth_kib = _resident_kib_max() - before_kib
    if growth_kib > GROWTH_KIB_MAX:
        raise Failure(index, f"memory grew by {growth_kib} KiB since input {FIRST_INPUTS}")


def _resident_kib_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    fuzz(run, "tests.property.frame_fuzz", __doc__)
