"""Request handlers of the broker, one module for each family: produce, fetch, topics, metadata."""
