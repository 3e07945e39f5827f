"""A program of Spark that copies topics until it is killed: `python -m tests.spark.driver JSON`.

The fault of each copy waits for the others, and the last one kills this process and its JVM, with
SIGKILL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.spark.copying import Copy, wait_for_end
from tests.spark.faults import Fault, FaultyDataSource, wait_for_fault
from tests.spark.session import new_session


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = new_session(Path(given["folder"]), master="local[2]")
    spark.dataSource.register(FaultyDataSource)
    for (point, folder), copy in zip(given["faults"], given["copies"], strict=True):
        fault = Fault(point, "kill_driver", folder, together=len(given["copies"]))
        query = Copy(**copy).start(
            spark, fault=fault, maxOffsetsPerTrigger=given["records_of_batch"]
        )
        wait_for_fault(query, folder)  # one after the other: each start takes a processor
    wait_for_end(query)


if __name__ == "__main__":
    main()
