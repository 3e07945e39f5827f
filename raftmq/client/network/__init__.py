"""How a client reaches brokers, on whatever event loop its program runs: asyncio or trio.

Begin at `peers.py`, or at `channel.py` for one connection. `conversation.py` decides what a
connection does and knows no event loop; `network.py` is the one door to sockets.
"""
