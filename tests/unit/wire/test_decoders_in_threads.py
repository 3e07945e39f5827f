"""Decoders that several threads need for the first time at once, as clients in threads do."""

from __future__ import annotations

import subprocess
import sys

# msgspec takes a type apart when the first decoder for it is made. A second thread that came
# meanwhile decoded with what was there so far, and the process died: so this runs in its own.
PROGRAM = """
import sys, threading
from types import ModuleType
from raftmq.errors import RemoteProtocolError
from raftmq.wire.bodies import Body
from tests.bodies import decode_body

fields = "".join(f"    f{number}: Offset = 0\\n" for number in range(12))
module = sys.modules["made"] = ModuleType("made")
source = "from __future__ import annotations\\nfrom raftmq.wire.bodies import *\\n"
source += "from raftmq.wire.bodies import Body, Offset\\n"
for number in range(200):
    source += f"class Inner{number}(Body):\\n{fields}"
    source += f"class Outer{number}(Body):\\n    one: Inner{number}\\n"
    source += f"    many: list[Inner{number}]\\n"
exec(source, vars(module))

barrier = threading.Barrier(2)

def decode_all():
    for number in range(200):
        kind = getattr(module, f"Outer{number}")
        barrier.wait()
        decode_body(kind, b"\\x92\\x9c" + bytes(12) + b"\\x91\\x9c" + bytes(12))

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=decode_all) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_two_threads_decode_a_body_for_the_first_time() -> None:
    """Two hundred types, each of them new to both threads in the same moment."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
