"""Options of the source and the sink, as Spark hands them over, checked. Pure."""
