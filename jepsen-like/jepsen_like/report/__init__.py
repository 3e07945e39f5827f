"""The report of a run: figures, recovery times, latency and timeline plots, one page of text.

Decides nothing about right and wrong, which is the checkers'; it counts, measures and shows.
Everything is made from the history, so that a run can be reported again from its files.
"""
