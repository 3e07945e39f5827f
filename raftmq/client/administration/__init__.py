"""The admin client: topics, configuration, record deletion, leader elections, cluster health.

Kafka: Admin. Begin at `admin.py`, the public calls; `results.py` has what they return. Consumer
groups are in `groups/`.
"""
