"""`raftmq produce` and `consume`: real processes, real pipes, against real brokers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from raftmq.sync import connect
from raftmq.testing import broker, cluster
from tests.cluster.data_here import PATIENCE_SECONDS, PROJECT, Here, interrupt, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.broker_cluster import BrokerCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    with broker() as server:
        yield Here(server)


# -- there and back ----------------------------------------------------------------------------


def test_bytes_of_any_kind(here: Here) -> None:
    """What goes in comes out, in order, whatever bytes it is of; also the empty lines."""
    topic = here.topic()
    lines = [Random(number).randbytes(number % 50).replace(b"\n", b"") for number in range(3000)]
    data = b"\n".join(lines) + b"\n"
    result = here.run("produce", topic, stdin=data)
    assert result.stderr.startswith(b"raftmq: 3000 records delivered in ")
    assert here.run("consume", topic, "-e").stdout == data
    assert here.run("consume", topic, "-e", "-f", r"%s\n").stdout == data


def test_keys_headers_and_tags(here: Here) -> None:
    """All of them come out again, as text and as JSON; a key stays in its partition."""
    topic = here.topic(partitions=4)
    headers = ["-H", "a=1", "-H", b"b=\xff", "-t", "eu", "-t", "new"]
    here.run(
        "produce", topic, "-K", ":", *headers, stdin=b"k1:v1\nk2:v2\nk1:v:3\nnone\n", exit_code=0
    )
    rows = sorted(here.lines(topic, "-f", r"%k|%s|%h|%S|%K|%t\n"))
    assert rows == [
        b"k1|v1|a=1,b=\xff|2|2|" + topic.encode(),
        b"k1|v:3|a=1,b=\xff|3|2|" + topic.encode(),
        b"k2|v2|a=1,b=\xff|2|2|" + topic.encode(),
        b"|none|a=1,b=\xff|4|-1|" + topic.encode(),
    ]
    objects = [json.loads(line) for line in here.lines(topic, "-f", "json")]
    first, second = (one for one in objects if one["key"] == "k1")
    assert (first["partition"], first["offset"] < second["offset"]) == (second["partition"], True)
    assert first["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value_base64": "/w=="}]
    assert first["tags"] == ["eu", "new"]


def test_null_and_one_key(here: Here) -> None:
    """An empty value is null if that was asked for; -k is the key of all."""
    topic = here.topic()
    here.run("produce", topic, "-k", "k", "-Z", "--quiet", stdin=b"v\n\n")
    assert here.lines(topic, "-f", r"%k %S %R\n") == [b"k 1 \0\0\0\1", b"k -1 \xff\xff\xff\xff"]


def test_other_delimiters_and_files(here: Here, tmp_path: Path) -> None:
    """Records with newlines in them; files one after the other, standard input among them."""
    topic = here.topic()
    (tmp_path / "one").write_bytes(b"a\nb\0c")
    (tmp_path / "two").write_bytes(b"e\0")
    files = ["--file", tmp_path / "one", "--file", "-", "--file", tmp_path / "two"]
    result = here.run("produce", topic, "-D", r"\0", *files, stdin=b"d\0")
    assert b"4 records delivered" in result.stderr
    assert here.run("consume", topic, "-e", "-f", "%s;").stdout == b"a\nb;c;d;e;"


@pytest.mark.parametrize(
    "options", [[], ["-z", "zstd", "--preset", "high_throughput"], ["--acks", "0"], ["-K", "5"]]
)
def test_many_lines(here: Here, options: list[str], tmp_path: Path) -> None:
    """A hundred thousand of them, each once."""
    topic = here.topic(partitions=3)
    lines = [b"line %d" % number for number in range(100_000)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))
    result = here.run("produce", topic, "--file", path, *options)
    assert b"100000 records " in result.stderr
    form = ["-f", r"%k5%s\n"] if options[:1] == ["-K"] else []
    wait_until(lambda: here.end_offset(topic) == len(lines))
    found = [line.removeprefix(b"5") for line in here.lines(topic, *form)]
    assert sorted(found) == sorted(lines)


def test_where_to_begin_and_to_end(here: Here) -> None:
    """Offsets, the last ones of each partition, times, counts, single partitions."""
    topic = here.topic(partitions=2)
    for partition in (0, 1):
        lines = b"".join(b"%d-%d\n" % (partition, number) for number in range(10))
        here.run("produce", topic, "-p", partition, stdin=lines)
    assert sorted(here.lines(topic, "-o", "-2")) == [b"0-8", b"0-9", b"1-8", b"1-9"]
    assert sorted(here.lines(topic, "-o", "9")) == [b"0-9", b"1-9"]
    assert here.lines(topic, "-o", "99") == here.lines(topic, "-o", "latest") == []
    assert here.lines(topic, "-p", "1", "-o", "7", "-n", "2") == [b"1-7", b"1-8"]
    assert len(here.lines(topic, "-o", "@0")) == 20
    assert here.lines(topic, "-o", "@2100-01-01T00:00:00Z") == []
    assert len(here.run("consume", topic, "-o", "earliest", "-n", "15").stdout.splitlines()) == 15
    assert here.run("consume", topic, topic, "-p", "0", "-o", "@0", "-n", "1").stdout == b"0-0\n"


def test_several_topics(here: Here) -> None:
    """Each has its own ends; one of them is empty."""
    one, two, empty = here.topic(), here.topic(), here.topic()
    here.run("produce", one, stdin=b"a\n")
    here.run("produce", two, stdin=b"b\n")
    result = here.run("consume", one, two, empty, "-e", "-f", r"%t %s\n")
    assert sorted(result.stdout.splitlines()) == [f"{one} a".encode(), f"{two} b".encode()]
    assert here.lines(empty) == []


def fill_with_tags(here: Here, topic: str) -> None:
    """Three records a batch; most bear no tag of `eu`, the last ones of both partitions, too."""
    batches = {b"a": ["us"], b"b": ["eu", "paid"], b"c": [], b"d": ["eu"], b"e": ["us", "paid"]}
    with connect(here.server.bootstrap) as mq, mq.producer() as producer:
        for partition in (0, 1):
            for name, tags in batches.items():
                values = [name + b"%d" % partition] * 3
                where = [partition] * 3
                producer.send_columns(topic, values=values, tags=[tags] * 3, partitions=where)


def test_records_by_their_tags(here: Here) -> None:
    """Those that pass; -e ends though the last ones do not, -n counts what is printed, -N offsets
    (A12.1)."""
    topic = here.topic(partitions=2)
    fill_with_tags(here, topic)
    some: list[tuple[list[str], list[bytes]]] = [
        (["--tags", "eu"], [b"b0", b"d0", b"b1", b"d1"]),
        (["--tags", "eu & !paid"], [b"d0", b"d1"]),
        (["--tags", "!eu & !us"], [b"c0", b"c1"]),
        (["--tags", "none"], []),
        (["--tags", "*", "-o", "-3"], [b"e0", b"e1"]),
        (["--tags", "eu", "-o", "-6", "-p", "1"], [b"d1"]),
        (["--tags", "eu", "-o", "9", "-p", "1"], [b"d1"]),
        (["--tags", "eu", "-o", "12"], []),
    ]
    for options, lines in some:
        assert sorted(here.lines(topic, *options)) == sorted(lines * 3), options
    assert len(here.lines(topic, "--tags", "eu", "-n", "7")) == 7
    result = here.run("consume", topic, "-o", "earliest", "--tags", "eu", "-p", "0", "-n", "4")
    assert result.stdout == b"b0\n" * 3 + b"d0\n"


def test_a_group_of_records_with_tags(here: Here) -> None:
    """-e ends, and no lag is left; what was left out counts as read (A12.1)."""
    topic = here.topic(partitions=2)
    fill_with_tags(here, topic)
    group = ["-g", topic, "-e", "--tags", "eu & paid"]
    assert sorted(here.lines(topic, *group)) == [b"b0"] * 3 + [b"b1"] * 3
    assert here.lags(topic) == [0, 0]
    here.run("produce", topic, "-t", "us", "-p", "0", stdin=b"left out\n")
    assert here.lags(topic) == [1, 0]
    assert here.lines(topic, *group) == []
    assert here.lags(topic) == [0, 0]
    here.run("produce", topic, "-t", "eu", "-t", "paid", "-p", "0", stdin=b"new\n" * 3)
    assert here.lines(topic, *group, "-n", "2") == [b"new"] * 2
    assert here.lags(topic) == [1, 0]


def test_a_reader_whom_nothing_passes(here: Here) -> None:
    """It is told why nothing is printed; a group commits what it has passed over meanwhile."""
    topic = here.topic(partitions=2)
    fill_with_tags(here, topic)
    waits = ["consume", topic, "-o", "earliest", "--tags", "none"]
    with here.running(*waits) as reader, here.running(*waits, "-g", "waits") as member:
        wait_until(lambda: here.lags("waits") == [0, 0])
        assert reader.stderr is not None
        assert b"none has passed --tags yet from there on" in reader.stderr.readline()
        assert member.stderr is not None
        assert b"nothing that passes --tags comes from where the" in member.stderr.readline()


def test_a_topic_without_tags(here: Here) -> None:
    """Kafka's record format has no place for them: refused, rather than read to the end of time."""
    topic = here.topic(config={"record.format": "kafka"})
    for options in ([], ["-g", "refused"]):
        result = here.run("consume", topic, "--tags", "eu", *options, exit_code=2)
        assert b"has record.format=kafka, in which records have no tags" in result.stderr


# -- slowly, and to the end --------------------------------------------------------------------


def test_a_slow_input_and_a_reader_that_waits(here: Here) -> None:
    """Each line is there at once, long before the input ends; Ctrl-C ends both sides."""
    topic = here.topic()
    with (
        here.running("consume", topic, "-o", "earliest") as reader,
        here.running("produce", topic) as writer,
    ):
        assert writer.stdin is not None
        assert reader.stdout is not None
        for number in range(3):
            writer.stdin.write(b"%d\n" % number)
            writer.stdin.flush()
            assert reader.stdout.readline() == b"%d\n" % number
        assert b"raftmq: 3 records delivered\n" in interrupt(writer)
        interrupt(reader)


def test_a_producer_that_is_told_to_end(here: Here) -> None:
    """SIGTERM says what Ctrl-C says: how many records are delivered."""
    topic = here.topic()
    with here.running("produce", topic) as writer:
        assert writer.stdin is not None
        assert writer.stderr is not None
        writer.stdin.write(b"1\n2\n")
        writer.stdin.flush()
        wait_until(lambda: here.end_offset(topic) == 2)
        writer.terminate()
        assert writer.wait(PATIENCE_SECONDS) == 143
        said = writer.stderr.read()
    assert said.endswith(b"raftmq: 2 records delivered\nraftmq: ended by SIGTERM\n")


def test_an_input_in_which_nothing_comes(here: Here) -> None:
    """Ctrl-C ends the wait at once, before the first record."""
    topic = here.topic()
    with here.running("produce", topic) as writer:
        time.sleep(1.5)  # it has started, or is about to
        assert writer.poll() is None
        interrupt(writer)


def test_somebody_types(here: Here) -> None:
    """At a terminal: a hint, each line at once, Ctrl-D ends."""
    topic = here.topic()
    ours, theirs = os.openpty()
    with here.running("produce", topic, stdin=theirs) as writer:
        os.close(theirs)
        assert writer.stderr is not None
        assert writer.stderr.readline() == b"raftmq: a record per line; Ctrl-D ends\n"
        os.write(ours, b"typed\n")
        wait_until(lambda: here.end_offset(topic) == 1)
        os.write(ours, b"\x04")
        assert writer.wait(PATIENCE_SECONDS) == 0
        assert b"1 record delivered" in writer.stderr.read()
    os.close(ours)


def test_somebody_has_seen_enough(here: Here) -> None:
    """`head` ends: so does the command, quietly, whether more is to be written or not."""
    topic = here.topic()
    here.run("produce", topic, stdin=b"x" * 1000 + b"\n" + b"line\n" * 100_000)
    for arguments in (["-e"], ["-o", "earliest"]):
        with here.running("consume", topic, *arguments) as reader:
            assert reader.stdout is not None
            assert len(reader.stdout.readline()) == 1001
            reader.stdout.close()
            assert reader.wait(PATIENCE_SECONDS) == 1
            assert reader.stderr is not None
            assert reader.stderr.read() == b""
    with here.running("consume", here.topic()) as idle:
        assert idle.stdout is not None
        idle.stdout.close()
        assert idle.wait(PATIENCE_SECONDS) == 1


# -- when something is wrong -------------------------------------------------------------------


def test_a_broker_that_is_killed_meanwhile() -> None:
    """The records wait until it is back; nothing is missing then, and the order has stayed."""
    with broker() as server:
        here = Here(server)
        topic = here.topic()
        with here.running("produce", topic) as writer:
            assert writer.stdin is not None
            writer.stdin.write(b"before\n")
            writer.stdin.flush()
            wait_until(lambda: here.end_offset(topic) == 1)
            server.kill_node(1)
            writer.stdin.write(b"".join(b"%d\n" % number for number in range(20_000)))
            writer.stdin.flush()
            time.sleep(1.0)
            assert writer.poll() is None
            server.start_node(1)
            writer.stdin.close()
            assert writer.wait(PATIENCE_SECONDS) == 0
            assert writer.stderr is not None
            assert b"20001 records delivered" in writer.stderr.read()
        found = here.lines(topic)
        assert list(dict.fromkeys(found)) == [b"before", *(b"%d" % one for one in range(20_000))]


def test_a_broker_that_does_not_come_back(here: Here) -> None:
    """The time is over: it is told what was delivered and what was not, and which broker failed."""
    with broker() as server:
        here = Here(server)
        topic = here.topic()
        with here.running("produce", topic, "--timeout", "1.5") as writer:
            assert writer.stdin is not None
            writer.stdin.write(b"before\n")
            writer.stdin.flush()
            wait_until(lambda: here.end_offset(topic) == 1)
            server.kill_node(1)
            writer.stdin.write(b"after\n")
            writer.stdin.close()
            assert writer.wait(PATIENCE_SECONDS) == 5
            assert writer.stderr is not None
            said = writer.stderr.read().decode()
        assert said.count("\n") == 1
        assert "; 1 record delivered, 1 " in said


def test_a_leader_that_is_killed() -> None:
    """Three brokers: the producer and the consumer go on with the next leader."""
    with cluster(3) as server:
        here = Here(server)
        topic = here.topic(replication_factor=3)
        with (
            here.running("consume", topic, "-o", "earliest", "-n", "2") as reader,
            here.running("produce", topic) as writer,
        ):
            assert writer.stdin is not None
            assert reader.stdout is not None
            writer.stdin.write(b"one\n")
            writer.stdin.flush()
            assert reader.stdout.readline() == b"one\n"
            leader = server.leader_of(topic)
            assert leader is not None
            server.kill_node(leader)
            writer.stdin.write(b"two\n")
            writer.stdin.close()
            assert writer.wait(PATIENCE_SECONDS) == 0
            assert reader.stdout.readline() == b"two\n"
            assert reader.wait(PATIENCE_SECONDS) == 0


def test_partitions_that_nobody_can_read() -> None:
    """A broker of three is dead, and each partition has one replica: -e prints what can be read,
    with a group, too, then names the others, and fails."""
    with cluster(3) as server:
        here = Here(server)
        topic = here.topic(partitions=3, replication_factor=1)
        for partition in range(3):
            here.run("produce", topic, "-p", partition, stdin=b"%d\n" % partition)
        dead = server.leader_of(topic, 1)
        assert dead is not None
        left = [b"%d" % one for one in range(3) if server.leader_of(topic, one) != dead]
        server.kill_node(dead)
        for options in ([], ["-g", "billing", "-o", "earliest"]):
            result = here.run("consume", topic, "-e", *options, exit_code=5)
            assert sorted(result.stdout.splitlines()) == left
            told = result.stderr.splitlines()[-1]
            assert told.startswith(b"raftmq: not read to the end: ")
            assert b" (" + topic.encode() + b" 1); `" in told


@pytest.mark.parametrize("options", [[], ["-g", "billing", "-o", "earliest"]])
def test_a_machine_that_vanishes(options: list[str], brokers: BrokerCluster) -> None:
    """A leader falls silent, as its connections stay open: -e waits until others lead, and nothing
    is left out."""
    bootstrap = ",".join(str(brokers.address(one)) for one in (1, 2, 3))
    here = Here(SimpleNamespace(bootstrap=bootstrap))
    topic = here.topic(partitions=6, replication_factor=3)
    for partition in range(6):
        here.run("produce", topic, "-p", partition, stdin=b"%d\n" % partition)
    with connect(bootstrap) as mq:
        controller = mq.admin.describe_cluster().controller_id
        leaders = {one.leader for one in mq.admin.describe_topic(topic).partitions}
    brokers.pause([max(leaders - {controller})])
    result = here.run("consume", topic, "-e", *options)
    assert sorted(result.stdout.splitlines()) == [b"%d" % one for one in range(6)]


def test_records_that_are_refused(here: Here) -> None:
    """One that is too large ends it, with the option that lets it through; all are counted."""
    topic = here.topic()
    data = b"small\n" + b"x" * (2 << 20) + b"\n"
    result = here.run("produce", topic, stdin=data, exit_code=1)
    assert b"a record of 2097152 bytes; --max-request-size is" in result.stderr
    # The small one may have left before the large one was read.
    assert re.search(
        rb"0 records delivered, 2 read and|1 record delivered, 1 read and", result.stderr
    )
    assert result.stderr.count(b"\n") == 1
    result = here.run("produce", topic, "--acks", "3", stdin=b"x\n", exit_code=1)
    assert b"0 records delivered, 1 read and not delivered" in result.stderr


# -- closed, full ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("produce {topic} <&-", "raftmq: stdin is closed: give it a file, or a pipe\n"),
        ("consume {topic} -e >&-", "raftmq: stdout is closed: give it a file, or a pipe\n"),
        (
            "consume {topic} -e >/dev/full",
            "raftmq: cannot write to stdout: No space left on device\n",
        ),
    ],
)
def test_streams_that_cannot_be_used(here: Here, command: str, said: str) -> None:
    """One line that names the stream, and exit code 1."""
    topic = here.topic()
    here.run("produce", topic, stdin=b"x\n")
    result = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m raftmq {command.format(topic=topic)}"],
        cwd=PROJECT,
        env=here.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, said)


def test_records_without_keys_stay_together(here: Here) -> None:
    """Ten lines of four partitions: stderr says in which one they are, and why; not with keys."""
    topic = here.topic(partitions=4)
    lines = b"".join(b"%d\n" % number for number in range(10))
    told = here.run("produce", topic, stdin=lines).stderr
    assert b"; all in partition " in told
    assert b" of 4: without keys (-K, -k)" in told
    assert b"all in partition" not in here.run("produce", topic, "-k", "a", stdin=lines).stderr
