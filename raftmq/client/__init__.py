"""The SDK: `connect`, producers, consumers and admin calls, on asyncio and on trio.

Begin at `client.py`. `producer/`, `consumer/` and `administration/` are what programs see;
`routing/` finds leaders and repeats attempts, `network/` holds the connections, on any event loop.
Every outcome is one of three: it has happened, it certainly has not (a definite error), or it is
unknown (an indefinite error).
"""

import logging

# Without a handler Python would print the SDK's warnings to stderr in programs that have set up no
# logging.
logging.getLogger("raftmq").addHandler(logging.NullHandler())
