"""RPC between nodes: addresses, sockets, connections, and requests with their answers.

Owns the broker's only access to sockets, `network.py`; clients have their own shell over anyio in
`client/network`. Every module above works on the streams that it is given, so that a simulated
network (tests/simulation/network.py) can replace the real one. The requesting side begins at
`trio_channel.py`, or at `peers.py` for many brokers; the serving side at `server.py`; both share
`connection.py`.
"""
