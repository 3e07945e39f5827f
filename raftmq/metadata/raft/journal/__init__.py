"""The journal of a voter: Raft log, term and vote on its disk, in segments."""
