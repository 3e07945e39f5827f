"""raftmq for Spark: a sink and a source (batch and stream) by PySpark's Python data source API.

Options, offsets and ranges are decided in modules that import neither pyspark nor pyarrow; the rest
hands their results to Spark. Uses the SDK of raftmq as programs do.
"""

import sys

from raftmq.extras import MissingExtra, require_extra

try:
    require_extra("spark", "the data source for Spark")
except MissingExtra as error:
    # `python -m spark_io.jobs.export`: Python imports the package first, and argv[0] is "-m" then.
    # No function of the job can turn the error into a line any more.
    job = next((word for word in sys.orig_argv if word.startswith("spark_io.jobs.")), None)
    if job is None or sys.argv[0] != "-m":
        raise
    sys.exit(f"{job.rpartition('.')[2]}: {error}")
