"""Commands that run brokers: one node of a deployment, or a cluster on this machine."""
