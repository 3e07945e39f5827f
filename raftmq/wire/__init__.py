"""Bytes to messages and back. Pure: no I/O, no clock, no randomness."""
