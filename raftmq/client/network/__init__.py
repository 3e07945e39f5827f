"""A client's connections to brokers, on the event loop of its program: asyncio or trio.

`channel.py` is a shell around `rpc/conversation.py`, which decides what a connection does;
`rpc/peers.py` keeps one for each broker. Only `network.py` touches sockets.
"""
