"""Rows of a database, each sent once: the outbox pattern. `python examples/outbox.py HOST:PORT`.

A program writes an order and, in the same transaction of its database, what is to be sent of it: a
row of the table `outbox`. Another one, the relay, sends these rows. It gives a number to some of
them, in the database, and sends them in a transaction with that number as its `version`. Wherever
it dies, it begins again with the same rows under the same number; a version is committed once.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import trio

import raftmq
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC, ORDERS, ROWS_AT_ONCE = "shop.orders", 25, 10
TABLES = """
CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT);
CREATE TABLE outbox
    (id INTEGER PRIMARY KEY, value TEXT, version INTEGER, is_sent INTEGER DEFAULT 0);
CREATE TABLE relay (transaction_id TEXT);
"""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class DiedError(Exception):
    """What kill -9 is in a program that goes on to show what follows."""


def new_database() -> sqlite3.Connection:
    """In memory here, a file or a server elsewhere. The transaction id stands in it, beside the
    versions: a database that begins anew, or comes back from an older copy, needs another id.
    """
    database = sqlite3.connect(":memory:")
    database.executescript(TABLES)
    with database:
        database.execute("INSERT INTO relay VALUES (?)", (f"shop-outbox-{time.time_ns()}",))
    return database


def order(database: sqlite3.Connection, item: str) -> None:
    """Both, or neither."""
    with database:
        number = database.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
        database.execute("INSERT INTO outbox (value) VALUES (?)", (f"order {number}: {item}",))


# -- The relay -------------------------------------------------------------------------------------


def next_version(database: sqlite3.Connection) -> int | None:
    """The one that was begun, or a new one for the oldest rows without; None: nothing is left."""
    begun = "SELECT min(version) FROM outbox WHERE NOT is_sent"
    (version,) = database.execute(begun).fetchone()
    if version is None:
        with database:  # from here on these rows belong together
            (highest,) = database.execute("SELECT max(version) FROM outbox").fetchone()
            taken = database.execute(
                "UPDATE outbox SET version = ? WHERE id IN"
                " (SELECT id FROM outbox WHERE version IS NULL ORDER BY id LIMIT ?)",
                (version := (highest or 0) + 1, ROWS_AT_ONCE),
            ).rowcount
        if not taken:
            return None
    return int(version)


async def relay(
    mq: raftmq.Client, database: sqlite3.Connection, *, at: Callable[[str, int], None]
) -> None:
    """Send all that is there.

    Args:
        at: called with the place where the relay is, and the version; may raise DiedError.
    """
    (transaction_id,) = database.execute("SELECT transaction_id FROM relay").fetchone()
    async with mq.producer(transaction_id=transaction_id) as producer:
        while (version := next_version(database)) is not None:
            async with producer.transaction(version=version) as tx:
                if tx.is_done:
                    say(f"version {version} was committed before: nothing is sent")
                else:
                    chosen = "SELECT value FROM outbox WHERE version = ? ORDER BY id"
                    for (value,) in database.execute(chosen, (version,)).fetchall():
                        await tx.send(TOPIC, value)
                at("sent", version)
            at("committed", version)
            with database:
                database.execute("UPDATE outbox SET is_sent = 1 WHERE version = ?", (version,))


# -- A shop, and a relay that dies twice -----------------------------------------------------------


def dying(place: str, version: int) -> Callable[[str, int], None]:
    def at(where: str, which: int) -> None:
        if (where, which) == (place, version):
            say(f"the relay dies with version {which} {where}")
            raise DiedError

    return at


async def main(bootstrap: str) -> None:
    database = new_database()
    mine = time.time_ns()  # other runs have written to the topic, too
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=1, if_not_exists=True)
        for number in range(ORDERS):
            order(database, f"{mine}/{number}")
        for at in (dying("sent", 1), dying("committed", 2), dying("never", 0)):
            try:
                await relay(mq, database, at=at)
            except DiedError:
                order(database, f"{mine}/late")  # the shop goes on
        expected = [value for (value,) in database.execute("SELECT value FROM outbox ORDER BY id")]
        found = Counter[str]()
        async with mq.consumer(TOPIC, start="earliest") as consumer:
            async for record in consumer:
                found[record.text() or ""] += 1
                if record.text() == expected[-1]:
                    break
        is_once = all(found[value] == 1 for value in expected)
        say(
            f"{len(expected)} orders, {'each of them once' if is_once else 'NOT each of them once'}"
        )


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
