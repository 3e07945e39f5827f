"""Transactions of producers: their state, what is asked of the coordinator, what programs type."""
