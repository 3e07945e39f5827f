"""What a run amounts to, for people: numbers, times to recover, pictures, one page of text.

Decides nothing about right and wrong, which is what checkers do; it counts, measures and shows.
Everything is made from the history, so that a run can be reported again from its files.
"""
