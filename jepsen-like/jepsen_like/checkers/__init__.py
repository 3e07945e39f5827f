"""Pure checkers of a history: each module finds one kind of anomaly, `verdict` runs them all.

Knows no queue: reads events (`history/event.py`), imports nothing that is tested. The entry point
is `verdict.judge`. Events become an `Account` in one pass (`account`, `columns`); the records of
each log by offset are its `version_order`; a checker is a function from the account to `Finding`s.
"""
