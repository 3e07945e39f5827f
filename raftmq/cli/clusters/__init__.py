"""Commands that ask a cluster, or change it: topics, groups, health, the quorum."""
