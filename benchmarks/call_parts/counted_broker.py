"""A `raftmq broker` that counts its calls of functions between two signals.

    python -m benchmarks.call_parts.counted_broker broker --config FILE

SIGUSR1 begins, SIGUSR2 ends and writes what was called in the main thread, where the event loop
runs, into FILE with the suffix `.calls.json`: as JSON, the fields of `Counted`. Changes nothing
else of the broker.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from benchmarks.call_parts.function_calls import CallCounter
from raftmq.__main__ import main as be_raftmq

BEGIN, END = signal.SIGUSR1, signal.SIGUSR2
SUFFIX = ".calls.json"


def main() -> None:
    counter, path = CallCounter(), Path(sys.argv[-1]).with_suffix(SUFFIX)

    def end() -> None:
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(counter.end()))
        unfinished.rename(path)  # whoever waits for it finds all of it

    signal.signal(BEGIN, lambda *_: counter.begin())
    signal.signal(END, lambda *_: end())
    be_raftmq()


if __name__ == "__main__":
    main()
