"""How nodes and clients reach each other: addresses, connections, requests.

Owns the one door to sockets, `network.py`. Everything above it works on streams that it is handed,
so that a simulated network (tests/simulation/network.py) can stand in for the real one. Who asks
begins at `channel.py`, or at `peers.py` for many; who answers, at `server.py`; both sides share
`connection.py`.
"""
