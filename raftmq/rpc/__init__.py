"""How nodes reach each other and are reached: addresses, connections, requests.

Owns the brokers' one door to sockets, `network.py`; clients have one of their own, in
`client/network`. Everything above it works on streams that it is handed, so that a simulated
network (tests/simulation/network.py) can stand in for the real one. Who asks begins at
`channel.py`, or at `peers.py` for many; who answers, at `server.py`; both sides share
`connection.py`.
"""
