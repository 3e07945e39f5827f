"""The SDK: how programs use a cluster.

Begin at `client.py`. `producer/`, `consumer/` and `administration/` are what programs see;
`routing/` knows whom to ask and when to ask again, `network/` brings it there, on any event loop.
Nothing here guesses: an operation has happened, or it certainly has not, or its outcome is unknown,
and then that is what the caller is told. `producing.py` and `admin.py` are single questions, as
are those about batches as bytes in `administration/offsets.py`.
"""

import logging

# A program that has set up no logging is not told on stderr what the SDK deals with by itself.
logging.getLogger("raftmq").addHandler(logging.NullHandler())
