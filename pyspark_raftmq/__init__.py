"""Where Spark finds the format `raftmq` by itself: it looks for `pyspark_*` and `DefaultSource`."""

from spark_io.source import RaftmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
