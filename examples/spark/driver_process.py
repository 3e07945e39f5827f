"""The streaming program as a process that can be killed.

Owns its process group: the program and its JVM. Spark's Python workers end with the JVM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from .topics import FLIGHTS, RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("driver.py")
LINES_TOLD_MAX = 20


class DriverFailedError(Exception):
    """The streaming program has ended with an error of its own."""


class Step(NamedTuple):
    """What the program says that it has done with a microbatch.

    Attributes:
        word: "written": its rows stand in the topic; "done": in Parquet, too.
    """

    word: str
    batch: int
    rows: int


class DriverProcess:
    """One run of the program. A context manager, which kills it if it still runs.

    Args:
        folder: for its checkpoint and files, the same one in each run.
        records_max: of a microbatch.
    """

    def __init__(self, bootstrap: str, folder: Path, *, records_max: int) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "driver.log"
        command = [sys.executable, PROGRAM, bootstrap, FLIGHTS, RESULTS, folder, records_max]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env={**os.environ, **environment(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def steps(self) -> Iterator[Step]:
        """Until it ends. Raises DriverFailedError, with the last lines of its log."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match line.split():
                case ("written" | "done") as word, batch, rows:
                    yield Step(word, int(batch), int(rows))
        if code := self._process.wait():
            said = self._log.read_text(errors="replace").splitlines()[-LINES_TOLD_MAX:]
            raise DriverFailedError("\n".join([f"the streaming program ended with {code}:", *said]))

    def kill(self) -> None:
        """With SIGKILL, and all that it runs."""
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def environment(folder: Path) -> dict[str, str]:
    """For a quick start, and no files elsewhere.

    Spark's Python workers import pyspark out of SPARK_HOME's pyspark.zip, which holds nothing
    compiled, and take four times as long to start; in a home without it they use what is installed.
    """
    import pyspark  # here, so that its absence gets a clear error

    installed, home = Path(pyspark.__file__).parent, folder / "home"
    home.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        if not (home / name).exists():
            (home / name).symlink_to(installed / name)
    return {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(folder),
    }
