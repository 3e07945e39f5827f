"""Scheduled records of a partition: what is pending in its log, and what is to be delivered."""
