"""The journal of a voter: log, term and vote on its disk."""
