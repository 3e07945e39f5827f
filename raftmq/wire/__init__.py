"""The wire protocol: frames, messages and record batches, encoded and decoded. Pure.

No I/O, no clock, no randomness. What another process has sent is checked here, before any memory is
spent on it (decisions 0009, 0029).
"""
