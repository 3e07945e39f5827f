"""Reading records: from which partitions, from where on, and what is handed out next.

Begin at `consumer.py`. What decides is pure: `fetch_plan.py` says what to ask of whom and takes the
answers in, `partition_state.py` knows one partition, `delivery.py` what comes next. `fetcher.py`
asks.
"""
