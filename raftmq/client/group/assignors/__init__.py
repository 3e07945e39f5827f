"""Assignors: rules by which the partitions of topics are assigned to the members of a group."""
