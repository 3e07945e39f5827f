"""`raftmq bench` at work: load, throughput, latency quantiles, and how the figures are printed."""
