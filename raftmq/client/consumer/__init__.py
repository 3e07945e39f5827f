"""The consumer: what is read, fetched from leaders, and handed to the program.

Begin at `consumer.py`. The rules are pure: `fetch_plan.py` decides what to request from which
broker, `fetch_response.py` applies the answers, `partition_state.py` holds one partition,
`fetch_collector.py` decides which records come next. `fetcher.py` has the tasks that send requests;
`group_consumption.py` and `group_reader.py` make a consumer a member of a group.
"""
