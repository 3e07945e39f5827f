"""A master of Spark with its workers: processes of this machine, each worker a host of its own.

Owns the processes. They end with the block, and with whoever started them, however that ends; what
a worker has started ends with the worker.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.cluster.broker_process import die_with_parent
from tests.spark.faults import wait_until
from tests.spark.session import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

DEPLOY = "org.apache.spark.deploy"
MASTER_URL = re.compile(r"spark://127\.0\.0\.1:[1-9]\d*")
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
END_SECONDS_MAX = 30.0


class SparkCluster:
    """Attributes:
    url: of the master, as sessions take it.
    """

    def __init__(self, folder: Path, *, workers: int) -> None:
        self._folder, self._count = folder, workers
        self._stack = ExitStack()
        self.url = ""

    def __enter__(self) -> Self:
        """The master is there; workers are on their way to it."""
        with ExitStack() as stack:
            log = self._start(stack, "master", "master.Master", "--host", "127.0.0.1")
            wait_until(lambda: MASTER_URL.search(log.read_text()) is not None)
            found = MASTER_URL.search(log.read_text())
            assert found is not None
            self.url = found.group()
            for number in range(self._count):
                self._start_worker(stack, number)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_worker(self, stack: ExitStack, number: int) -> None:
        """A host for each: no two attempts of a task run on one."""
        resources = ("--cores", "1", "--memory", "600m", "--host", f"127.0.0.{number + 2}")
        work = ("--work-dir", str(self._folder / f"work-{number}"))
        self._start(stack, f"worker-{number}", "worker.Worker", self.url, *resources, *work)

    def _start(self, stack: ExitStack, name: str, kind: str, *arguments: str) -> Path:
        """Returns its log."""
        log = self._folder / f"{name}.log"
        options = ("--port", "0", "--webui-port", "0")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, f"{DEPLOY}.{kind}", *arguments, *options],
                cwd=ROOT,
                env={**os.environ, **self._environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        stack.callback(_end, process)
        return log

    def _environment(self) -> dict[str, str]:
        return {
            **environment(self._folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_NO_DAEMONIZE": "1",
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    """With the executors of a worker, which are of its group."""
    os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is its own still
    process.wait(END_SECONDS_MAX)


def main(command: Sequence[str]) -> None:
    """Die with the parent, and be a node of Spark."""
    die_with_parent()
    program = f"{os.environ['SPARK_HOME']}/bin/spark-class"
    os.execv(program, [program, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
