"""How nodes and clients reach each other: addresses, connections, requests.

Owns the one door to sockets, `network.py`. Everything above it works on streams that it is handed,
so that a simulated network (tests/simulation/network.py) can stand in for the real one.
"""
