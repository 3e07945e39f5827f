"""docs/REQUIREMENTS.md, written from the ids that tests cite: `python -m tests.requirements`.

A requirement has an id (A1.1 ...), which the docstring of a test that shows it names. The words,
and what of it is not built yet, stand here; `tests/unit/test_requirements.py` compares the page,
and refuses unknown ids, and requirements that no test shows and this list does not miss.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/REQUIREMENTS.md"
CITED_OR_TEST = re.compile(
    r"\b(?P<id>A\d{1,2}\.\d{1,2}|A15)\b|^(?:async )?def (?P<test>test\w*)", re.MULTILINE
)
SHOWN_MAX = 6  # places in a row of the table: who wants all of them searches for the id
HEAD = """# Requirements and the tests that show them

What raftmq is to do, each with the tests that cite its id. Written by
`python -m tests.requirements` from the docstrings of the tests; a file stands for all of its tests
where the docstring of the module cites the id. What is promised in exact words is in
[GUARANTEES](GUARANTEES.md).

Of {all} requirements {whole} are shown by tests, {partly} in part; {missing} are not built yet.
"""


class Requirement(NamedTuple):
    """One thing that raftmq is to do.

    Attributes:
        words: what it is.
        missing: what of it is not built; everything, if no test cites it.
    """

    words: str
    missing: str = ""


AREAS: dict[str, dict[str, Requirement]] = {
    "Topics and ways of reading": {
        "A1.1": Requirement("every group gets every record of a topic"),
        "A1.2": Requirement("of one group each record goes to one live member"),
        "A1.3": Requirement("a group reads again from the beginning, an offset or a time"),
        "A1.4": Requirement("a topic's name is unique; made anew it is another topic, by its id"),
        "A1.5": Requirement("order within a partition, through failures, retries and rebalances"),
        "A1.6": Requirement("a group reads several topics, also by a pattern"),
        "A1.7": Requirement("members beyond the partitions idle, and take over"),
    },
    "Records, batches, protocol": {
        "A2.1": Requirement("key, value, offset, timestamp, size, CRC, headers, tags"),
        "A2.2": Requirement("a batch's bytes are the producer's, on disk and on the wire"),
        "A2.3": Requirement("a checksum over each batch: damage is refused, found, repaired"),
        "A2.4": Requirement("records up to max.message.bytes, 1 MiB unless set otherwise"),
        "A2.5": Requirement("timestamps of producers or of the log; offsets by time"),
        "A2.6": Requirement("compression, by batch"),
        "A2.7": Requirement(
            "one protocol for everything, with versions, limits and error codes",
            missing="requests of an archive",
        ),
        "A2.8": Requirement("many requests in flight on a connection"),
    },
    "Storage": {
        "A3.1": Requirement("a folder of segments with indexes for each partition"),
        "A3.2": Requirement("only the last segment is written; segments roll by size and by time"),
        "A3.3": Requirement("retention by age, two weeks unless set otherwise, and by size"),
        "A3.4": Requirement("old records are deleted on request, up to an offset"),
        "A3.5": Requirement("a record is found by its offset, over a sparse index"),
        "A3.6": Requirement("one sequential write for all batches of an append; sendfile"),
        "A3.7": Requirement("recovery after kills, power cuts and torn writes"),
        "A3.8": Requirement("a full or failing disk: no wrong promise, and another replica leads"),
    },
    "Producers": {
        "A4.1": Requirement("the client finds leaders, and follows them"),
        "A4.2": Requirement("one key, one partition; a consistent hash as an option"),
        "A4.3": Requirement("partitioners of the program's own"),
        "A4.4": Requirement("records without a key are spread evenly"),
        "A4.5": Requirement("batches, with size and linger"),
        "A4.6": Requirement("bounded memory: a fast producer waits, or gets BufferFull"),
        "A4.7": Requirement("sending with waiting, without, and with a callback"),
        "A4.8": Requirement("sent again until delivery_timeout_ms; never with acks=0"),
        "A4.9": Requirement("added partitions are used without a restart"),
        "A4.10": Requirement("producers come and go without a group"),
    },
    "Acknowledgements and replication": {
        "A5.1": Requirement("acks of 0, 1 and all"),
        "A5.2": Requirement("acks of any number of replicas"),
        "A5.3": Requirement("acks=all is refused below min.insync.replicas"),
        "A5.4": Requirement("three replicas on different brokers and racks"),
        "A5.5": Requirement("followers fetch from their leader"),
        "A5.6": Requirement("replicas that lag leave the in-sync set, and come back"),
        "A5.7": Requirement("consumers see only what is committed"),
        "A5.8": Requirement("acks=all survives the leader's death at any moment"),
        "A5.9": Requirement("reading from the nearest replica", missing="all of it"),
        "A5.10": Requirement("no unclean election unless the topic allows it"),
    },
    "Controller and metadata": {
        "A6.1": Requirement("one controller at a time, whose decisions are replicated"),
        "A6.2": Requirement("metadata survives the restart of all voters"),
        "A6.3": Requirement("a broker that falls silent is fenced, its leaders move"),
        "A6.4": Requirement("a minority without the quorum goes on with what it leads"),
        "A6.5": Requirement("snapshots of the metadata, and catching up by them"),
    },
    "Consumers": {
        "A7.1": Requirement("consumers pull, in batches, at their own pace"),
        "A7.2": Requirement("long polls wake when records come"),
        "A7.3": Requirement("find the coordinator, join, go on at the committed offset"),
        "A7.4": Requirement("commits by record or batch, never off by one"),
        "A7.5": Requirement("another member goes on where a dead one had committed"),
        "A7.6": Requirement("seek, pause, partitions by hand, where to begin"),
    },
    "Consumer groups": {
        "A8.1": Requirement("one coordinator for a group, found by its name"),
        "A8.2": Requirement("heartbeats, which also say that the group rebalances"),
        "A8.3": Requirement("the leader of a group plans; several strategies, or the program's"),
        "A8.4": Requirement("rebalances on join, leave, crash, and new partitions or topics"),
        "A8.5": Requirement("a partition has one member of a group at a time"),
        "A8.6": Requirement("the leader of a group may die at any moment"),
        "A8.7": Requirement("the coordinator may die: members keep their generation"),
    },
    "Offsets of groups": {
        "A9.1": Requirement("offsets and plans stand in the quorum"),
        "A9.2": Requirement("many commits share a command; a fetch sees every answered commit"),
        "A9.3": Requirement("offsets of dead groups expire; groups are listed, deleted, measured"),
    },
    "Scaling": {
        "A10.1": Requirement(
            "a dead broker: leaders move, and it comes back",
            missing="a replacement replica on another broker",
        ),
        "A10.2": Requirement(
            "moving replicas to new brokers, by more replicas for a while",
            missing="one command that fills a broker",
        ),
        "A10.3": Requirement("taking brokers out", missing="all of it"),
        "A10.4": Requirement("a topic grows by partitions; old records stay"),
        "A10.5": Requirement("a topic shrinks by partitions", missing="all of it"),
        "A10.6": Requirement("bounded memory in a surge", missing="quotas"),
        "A10.7": Requirement("capacity grows with partitions and brokers"),
    },
    "Delivery": {
        "A11.1": Requirement("at most once"),
        "A11.2": Requirement("at least once, the default"),
        "A11.3": Requirement(
            "exactly once, across partitions and offsets",
        ),
        "A11.4": Requirement(
            "one option sets all that belong together, and refuses contradictions",
        ),
    },
    "Further": {
        "A12.1": Requirement("filtering by tags on the broker"),
        "A12.2": Requirement("delayed records"),
        "A12.3": Requirement("records for a certain time"),
        "A12.4": Requirement("retry topics"),
        "A12.5": Requirement("dead letters"),
        "A12.6": Requirement("an archive of what retention removes", missing="all of it"),
        "A12.7": Requirement("mirroring between clusters", missing="all of it; not planned"),
        "A13.1": Requirement("presets for throughput and for latency"),
        "A13.2": Requirement("on disk, and replicated"),
        "A13.3": Requirement("the loss of any broker leaves the service up"),
        "A14.1": Requirement("a sink of Spark, in batches and streams"),
        "A14.2": Requirement("a source of Spark, with offsets that can be read again"),
        "A14.3": Requirement("rows once, though tasks, microbatches and drivers run again"),
        "A15": Requirement("a suite of faults, with checkers of histories"),
        "A17.1": Requirement("many producers and consumers at once"),
        "A17.2": Requirement(
            "a full queue refuses clearly", missing="how much room is left, in advance"
        ),
        "A17.3": Requirement("keys keep their kind: number, text, bytes"),
        "A17.4": Requirement("TLS", missing="all of it"),
        "A17.5": Requirement("placement beyond racks", missing="all of it"),
        "A17.6": Requirement(
            "members of different power",
            missing="an assignor of ours; one of the program's own can do it",
        ),
    },
}
KNOWN = {name: each for area in AREAS.values() for name, each in area.items()}


@cache
def cited() -> dict[str, list[str]]:
    """By id: where tests name it, as `file` or `file::function`, in order."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        of_all: set[str] = set()  # what the docstring of the module cites stands for its tests
        place = path.relative_to(ROOT).as_posix()
        for each in CITED_OR_TEST.finditer(path.read_text("utf-8")):
            if each["test"]:
                place = f"{path.relative_to(ROOT).as_posix()}::{each['test']}"
            elif each["id"] not in of_all and place not in found[each["id"]]:
                found[each["id"]].append(place)
                of_all |= set() if "::" in place else {each["id"]}
    return dict(found)


def page() -> str:
    places = cited()
    counts = {
        "all": len(KNOWN),
        "whole": sum(name in places and not each.missing for name, each in KNOWN.items()),
        "partly": sum(name in places and bool(each.missing) for name, each in KNOWN.items()),
        "missing": sum(name not in places for name in KNOWN),
    }
    return HEAD.format(**counts) + "".join(_section(area, places) for area in AREAS)


def _section(area: str, places: dict[str, list[str]]) -> str:
    rows = [_row(name, each, places.get(name, [])) for name, each in AREAS[area].items()]
    return f"\n## {area}\n\n| id | requirement | shown by |\n|---|---|---|\n" + "".join(rows)


def _row(name: str, each: Requirement, places: list[str]) -> str:
    shown = ", ".join(f"`{place.removeprefix('tests/')}`" for place in places[:SHOWN_MAX])
    more = f" and {len(places) - SHOWN_MAX} more" if len(places) > SHOWN_MAX else ""
    missing = f"**not built yet:** {each.missing}" if each.missing else ""
    return f"| {name} | {each.words} | {'. '.join(filter(None, (shown + more, missing)))} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
