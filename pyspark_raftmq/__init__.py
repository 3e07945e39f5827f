"""Where Spark finds the format `raftmq` by itself: it looks for `pyspark_*` and `DefaultSource`.

A program imports it before it makes a session, so that Spark runs this interpreter.
"""

from spark_io.python_processes import use_this_interpreter
from spark_io.source import RaftmqDataSource as DefaultSource

__all__ = ["DefaultSource"]

use_this_interpreter()
