"""The generator of docs/CONFIGURATION.md, from the definitions of node keys and topic keys.

    python -m raftmq.cli.nodes.configuration_page > docs/CONFIGURATION.md

Owns the page's text around the tables. A test compares the page with `page()`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raftmq.broker.node_config_keys import NODE_KEYS
from raftmq.broker.requests.topics import default_text
from raftmq.cli.nodes.overrides import variable_of
from raftmq.topic_config import TOPIC_KEYS

if TYPE_CHECKING:
    from raftmq.broker.node_config_keys import NodeKey
    from raftmq.topic_config import TopicKey

COMMAND = "python -m raftmq.cli.nodes.configuration_page > docs/CONFIGURATION.md"
UNBOUNDED = (1 << 63) - 1  # the largest int64, which keys without a limit have as their maximum

_BEGIN = f"""\
# Configuration

Every key of a node, and every key of a topic. This page is written from the definitions in the
code, by `{COMMAND}`.

## A node

`raftmq broker --config FILE` reads a TOML file. It is read once: a change takes effect with the
next start.

```toml
[node]
id = 1
cluster_id = "orders"
directory = "/var/lib/raftmq"

[quorum.voters]
1 = "10.0.0.1:9293"
2 = "10.0.0.2:9293"
3 = "10.0.0.3:9293"

[[listeners]]
name = "clients"
bind = "0.0.0.0:9292"
advertised = "10.0.0.1:9292"

[[listeners]]
name = "brokers"
bind = "10.0.0.1:9294"
```

What is said in several places counts in this order, the last one for good:

1. the file;
2. variables of the environment: `RAFTMQ_` and the key, two underscores for each dot. One that has
   these two underscores and means no key is an error. Others (`RAFTMQ_BOOTSTRAP` is the client's)
   are left alone;
3. `-o key=value` on the command line.

In the environment and on the command line a listener goes by its name, and one of a new name is
added: `-o listeners.clients.bind=10.0.0.1:9292` is `RAFTMQ_LISTENERS__CLIENTS__BIND`.

All problems are reported at once, each on a line of its own with its key, and the node ends before
it has touched anything: with exit code 2 where settings are wrong or the directory is another's,
with 1 where only this machine refuses the directory or an address, or gives the process fewer
than 60 file descriptors. `--check` tries the same, starts nothing, and prints each setting with
where it is from; it ends with 2 in these cases, and on a full disk, too. A single voter, an even
number of voters, few file descriptors, little address space and, at a start, a full disk are warned
of on stderr.

"""

_TOPICS = """
## A topic

Set when a topic is made, and changed while it is there. Keys that Kafka has, too, mean the same;
where a default differs, [0005](decisions/0005-defaults.md) says why. A whole number of milliseconds
or bytes, one of the words, or durations, like `1s 10m 2h`.

"""


def page() -> str:
    """The whole file."""
    nodes = ["| key | what it takes | default | what it means |", "|---|---|---|---|"]
    topics = ["| key | what it takes | default | what it means |", "|---|---|---|---|"]
    nodes += map(_node_row, NODE_KEYS)
    topics += map(_topic_row, TOPIC_KEYS)
    variables = [
        f"    {variable_of(key.name)}" for key in NODE_KEYS if "<name>.name" not in key.name
    ]
    parts = [_BEGIN, *_lines(nodes), "\nThe variables of the environment:\n\n", *_lines(variables)]
    return "".join([*parts, _TOPICS, *_lines(topics)])


def _lines(rows: list[str]) -> list[str]:
    return [f"{row}\n" for row in rows]


def _node_row(key: NodeKey) -> str:
    default = key.default or "it must be there"
    return f"| `{key.name}` | {key.allowed} | {default} | {key.doc} |"


def _topic_row(key: TopicKey) -> str:
    allowed = " or ".join(f"`{choice}`" for choice in key.choices)
    if key.form:
        allowed = key.form
    elif not key.choices:
        end = f"to {key.maximum}" if key.maximum < UNBOUNDED else "or more"
        allowed = f"{key.minimum} {end}"
    return f"| `{key.name}` | {allowed} | `{default_text(key)}` | {key.doc} |"


if __name__ == "__main__":
    sys.stdout.write(page())
