"""Planted bugs: each takes away one rule, or one step, of the code under test; never a check.

Simulations plant them for one world. A real cluster runs with the one that it is given; there is no
option for that on any command line, only tests ask for it.
"""
