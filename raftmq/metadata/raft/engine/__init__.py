"""The Raft engine: PySyncObj behind honest names, and the rules that it lacks. No I/O, no tasks."""
