"""RPC between nodes: addresses, sockets, connections, and requests with their answers.

Owns the broker's only access to sockets, `network.py`; every module above works on the streams that
it is given, so that a simulated network (tests/simulation/network.py) can replace the real one. The
requesting side begins at `peers.py`, or at `channel.py` for one connection; `conversation.py`
decides what that does, and has two shells: `trio_channel.py` for brokers, and
`client/network/channel.py` over anyio for programs. The serving side begins at `server.py`.
"""
