"""Commands that ask a cluster, or change it: topics, health, the quorum."""
