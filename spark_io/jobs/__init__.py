"""Jobs of a data pipeline, for `python -m` and for spark-submit: export, replay, bulk_load.

Each is a command with `main(argv) -> int`, uses the Spark that is there, and can be run again: what
one run has done, the next one does not do twice.
"""
