"""Network of the quorum: connections between voters, to observers, and for status requests."""
