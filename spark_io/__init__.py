"""raftmq for Spark: a sink and a source (batch and stream) by PySpark's Python data source API.

Options, offsets and ranges are decided in modules that import neither pyspark nor pyarrow; the rest
hands their results to Spark. Uses the SDK of raftmq as programs do.
"""

from raftmq.extras import require_extra

require_extra("spark", "the data source for Spark")
