"""What clients do to a cluster while it is broken, and at the end: one module per workload."""
