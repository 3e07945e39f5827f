"""Jobs of a data pipeline, for `python -m` and for spark-submit: export, replay, bulk_load.

Each is a command with `main(argv) -> int`, uses the Spark that is installed, and is idempotent: a
second run does not write again what the first one has written.
"""
