"""raftmq for Spark: a sink and a source by PySpark's Python data source API.

What is decided (options, offsets, ranges) stands in modules that know neither pyspark nor pyarrow;
the rest hands it to Spark. Of raftmq it uses what programs use.
"""
