"""Options of the source and the sink, as Spark passes them, checked. Pure."""
