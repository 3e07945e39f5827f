"""See Spark and raftmq work together: a streaming job is killed, goes on, and no row comes twice.

    python examples/spark_demo.py [--flights 20000] [--directory demo-data] [--keep]

Three raftmq brokers on 127.0.0.1 hold all 336,776 flights that left New York in 2013. A program for
Spark Structured Streaming reads them in about ten microbatches, adds up the delays of each carrier
and hour, and writes them into a second topic and into Parquet. In the middle of a microbatch it is
killed with SIGKILL and started again. Then both results are compared with what plain Python makes
of the same flights. Exit code 1 if they differ. The parts are in spark/; spark/driver.py is the
streaming program. Needs Java 17.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the parts use those of flights/, too
    from examples.spark.command import main

    sys.exit(main())
