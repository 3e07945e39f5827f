"""What a history proves: each module looks for one kind of wrong, `verdict` runs them all.

Pure, and knows no queue: reads events (`history/event.py`), imports nothing that is tested. The
way in is `verdict.judge`. Events become an `Account` in one pass (`account`, `columns`); what stood
where in each log is its `version_order`; a checker is a function from the account to `Finding`s.
"""
