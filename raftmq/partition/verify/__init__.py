"""Is a log on disk what it should be? Reads everything, changes nothing, judges each promise."""
