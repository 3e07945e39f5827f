"""A client's connections to brokers, on the event loop of its program: asyncio or trio.

Begin at `peers.py`, or at `channel.py` for one connection. `conversation.py` decides what a
connection does and knows no event loop; only `network.py` touches sockets.
"""
