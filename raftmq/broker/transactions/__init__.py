"""Transactions on a broker: the coordinator of transaction ids, and the leaders of partitions that
resolve what is open in their logs.
"""
