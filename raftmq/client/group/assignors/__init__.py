"""Assignors: rules by which the partitions of topics are dealt out to the members of a group."""
