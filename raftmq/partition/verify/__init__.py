"""Is a log on disk what it should be? Every promise of the format, checked from outside.

Owns the judgement, one module per kind of file. Reads everything and changes nothing; works on
folders that no log could be opened from, and on those that a broker has open.
"""
