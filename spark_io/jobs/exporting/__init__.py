"""From a topic to Parquet: what is missing, the folder that says it, and the work of one task."""
