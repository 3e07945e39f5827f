"""The Raft engine: PySyncObj behind readable names, and the rules it lacks. No I/O, no tasks."""
