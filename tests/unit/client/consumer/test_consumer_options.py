"""What a program may ask of a consumer: names, bounds, and what contradicts what."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.client.consumer.options import consumer_options
from raftmq.client.consumer.partition_state import FROM_EARLIEST, FROM_LATEST
from raftmq.errors import InvalidConfig
from raftmq.model import IsolationLevel


def test_defaults() -> None:
    """The end of the log, and errors where an offset is not there."""
    options = consumer_options(["orders"], {})
    assert (options.start_at(("orders", 0)), options.reset) == (FROM_LATEST, None)
    assert options.fetch_max_wait_ms == 500


def test_what_was_given() -> None:
    """Whole topics, or partitions; where to go on by itself."""
    options = consumer_options([], {"assign": [("orders", 0)], "auto_offset_reset": "earliest"})
    assert (options.assign, options.reset) == ([("orders", 0)], FROM_EARLIEST)


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_where_kafka_has_one_option(word: str) -> None:
    """`auto_offset_reset` alone says where to begin, too, as in Kafka (A7.6)."""
    options = consumer_options(["orders"], {"auto_offset_reset": word, "group": "g"})
    assert (options.start, options.auto_offset_reset) == (word, word)
    given = {"auto_offset_reset": word, "start": 7}
    assert consumer_options(["orders"], given).start == 7
    options = consumer_options(["orders"], {"auto_offset_reset": "none"})
    assert options.start_at(("orders", 0)) == FROM_LATEST


def test_all_that_is_wrong_at_once() -> None:
    """Options of the consumer, of its group and of its membership."""
    given = {
        "start": "begining",
        "group": "g",
        "commit": "manuel",
        "delivery": "at_most_twice",
        "session_timeout_ms": -1,
        "fetch_max_bytes": 0,
    }
    with pytest.raises(InvalidConfig) as caught:
        consumer_options([], given)
    told = [problem.split(" ")[0] for problem in caught.value.problems]
    names = ["commit", "delivery", "fetch_max_bytes", "session_timeout_ms", "start"]
    assert sorted(told) == names


def test_an_option_that_is_not_known() -> None:
    """With the one that may be meant."""
    with pytest.raises(TypeError, match=r"consumer: no option 'max_poll_record' \(did you mean"):
        consumer_options(["orders"], {"max_poll_record": 3})


def test_a_start_for_each_partition() -> None:
    given = {("a", 0): 7, ("b", 1): "earliest"}
    options = consumer_options([], {"assign": [("a", 0), ["b", 1]], "start": given})
    assert options.start_at(("a", 0)).offset == 7
    assert options.start_at(("b", 1)) == FROM_EARLIEST


@pytest.mark.parametrize(
    ("assign", "start", "told"),
    [
        ([("a", 0)], {}, "a mapping names exactly the partitions of assign"),
        ([("a", 0)], {("a", 0): 1, ("a", 1): 1}, "a mapping names exactly the partitions"),
        (None, {("a", 0): 1}, "a mapping names exactly the partitions of assign"),
        ([("a", 0)], {("a", 0): -1}, "start = -1"),
    ],
)
def test_a_start_that_is_none(assign: Any, start: Any, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        consumer_options([] if assign else ["a"], {"assign": assign, "start": start})


def test_an_option_whose_time_has_not_come() -> None:
    """A known name, and a clear word."""
    with pytest.raises(InvalidConfig, match=r"rack: .* not there yet"):
        consumer_options(["orders"], {"rack": "x"})


@pytest.mark.parametrize(
    ("tags", "normal"),
    [
        ("paid & (eu | us) & !test", "eu & paid & !test | paid & us & !test"),
        ({"us", "eu"}, "eu | us"),
        (["eu", "eu"], "eu"),
        (("a tag", "*"), '"*" | "a tag"'),
        (frozenset({"a & b"}), '"a & b"'),
        ("!test", "!test"),
    ],
)
def test_records_by_their_tags(tags: Any, normal: str) -> None:
    """An expression; or tags, each as it is, any of which is enough (A12.1)."""
    assert str(consumer_options(["orders"], {"tags": tags}).tag_filter) == normal


@pytest.mark.parametrize("tags", [None, "*", " * "])
def test_all_records(tags: Any) -> None:
    """Whatever tags they have (A12.1)."""
    assert consumer_options(["orders"], {"tags": tags}).tag_filter is None


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        (3, "tags = 3: expected an expression, as 'paid & !test', or a set of tags"),
        (b"eu", "tags = b'eu': expected an expression"),
        ({"eu": 1}, "tags = {'eu': 1}: expected an expression"),
        (["eu", None], "tags = ['eu', None]: expected an expression"),
        ("", "tags: expected a tag, ! or ( at character 1"),
        ("eu & ", "tags: expected a tag, ! or ( at character 5: eu & >>> "),
        ("eu us", "tags: expected & or | or the end at character 4: eu  >>> us"),
        ("eu & *", "tags: * stands alone"),
        ('eu & "us', "tags: a quotation mark that is not closed at character 6"),
        ("eu & !eu", "matches no record: it asks for a tag and for its absence"),
        ("x" * 256, "tags: a tag has 1 to 255 bytes at character 1"),
        (" & ".join(f"t{number}" for number in range(17)), "joins 17 tags by &, at most 16"),
        (" | ".join(f"t{number}" for number in range(17)), "comes to 17 alternatives, at most 16"),
        ({f"t{number}" for number in range(17)}, "tags: this set of tags comes to 17 alternatives"),
        ([], "tags: no tags, so no record would pass: leave the filter out, or say *"),
        ([""], "tags: a tag has 1 to 255 bytes"),
    ],
)
def test_tags_that_make_no_sense(tags: Any, told: str) -> None:
    """Refused, with the character; together with what else is wrong."""
    with pytest.raises(InvalidConfig) as caught:
        consumer_options(["orders"], {"tags": tags, "max_poll_records": 0})
    assert [told in problem for problem in caught.value.problems] == [False, True]


@pytest.mark.parametrize(
    ("topics", "given", "told"),
    [
        ([], {}, "nothing to read: name a topic, or assign="),
        (["orders"], {"assign": [("orders", 0)]}, "assign: the topics orders are named, too"),
        ([3], {}, "3 is not a topic's name"),
        ([""], {}, "'' is not a topic's name"),
        (["x" * 256], {}, "is not a topic's name"),
        ([], {"assign": []}, "assign = []"),
        ([], {"assign": "orders"}, "assign = 'orders'"),
        ([], {"assign": [("orders", -1)]}, "('orders', -1) is not a pair"),
        ([], {"assign": ["orders"]}, "'orders' is not a pair"),
        ([], {"assign": [("orders", True)]}, "('orders', True) is not a pair"),
        (["orders"], {"start": "begin"}, "start = 'begin'"),
        (["orders"], {"start": "begining"}, "or a datetime (did you mean 'earliest'?)"),
        (["orders"], {"start": "Latest"}, "or a datetime (did you mean 'latest'?)"),
        (["orders"], {"start": "zzz"}, "or a datetime"),
        (["orders"], {"auto_offset_reset": "first"}, "auto_offset_reset = 'first'"),
        (["orders"], {"auto_offset_reset": "earlyest"}, "(did you mean 'earliest'?)"),
        (["orders"], {"auto_offset_reset": 3}, "auto_offset_reset = 3"),
        (["orders"], {"group": "g", "commit": "manuel"}, "(did you mean 'manual'?)"),
        (["orders"], {"value_deserializer": "json"}, "expected a function, such as json.loads"),
        (["orders"], {"max_poll_records": 0}, "max_poll_records = 0"),
        (["orders"], {"fetch_max_bytes": 51 << 20}, "from 1 to 52428800"),
        (["orders"], {"prefetch_bytes": "1"}, "prefetch_bytes = '1'"),
        (["orders"], {"fetch_max_wait_ms": 0}, "fetch_max_wait_ms = 0"),
        (["orders"], {"isolation_level": "committed"}, "(did you mean 'read_committed'?)"),
        (["orders"], {"isolation_level": 1}, "isolation_level = 1: expected"),
        (["orders"], {"fetch_min_bytes": True}, "fetch_min_bytes = True"),
    ],
)
def test_what_makes_no_sense(topics: list[Any], given: dict[str, Any], told: str) -> None:
    """Refused, with the name and the value."""
    with pytest.raises(InvalidConfig) as caught:
        consumer_options(topics, given)
    assert told in str(caught.value)


def test_a_member_of_a_group() -> None:
    """One call says how it is a member, and how it reads."""
    given = {"group": "billing", "commit": "record", "session_timeout_ms": 9000, "start": 0}
    options = consumer_options(["orders"], given)
    assert options.group is not None
    assert (options.group.commit, options.group.member.session_timeout_ms) == ("record", 9000)


def test_a_pattern_in_place_of_topics() -> None:
    """Which topics there are is found out later."""
    options = consumer_options([], {"group": "billing", "pattern": "orders-.*"})
    assert options.group is not None
    assert options.group.pattern == "orders-.*"


@pytest.mark.parametrize(
    ("delivery", "commit"),
    [("at_most_once", "before"), ("at_least_once", "batch"), ("exactly_once", "transaction")],
)
def test_one_word_for_how_often(delivery: str, commit: str) -> None:
    """It sets the commit mode (A11.4)."""
    options = consumer_options(["orders"], {"group": "billing", "delivery": delivery})
    assert options.group is not None
    assert options.group.commit == commit
    assert options.isolation is IsolationLevel.READ_COMMITTED


def test_all_that_contradicts_exactly_once() -> None:
    """Told at once, with the values that go together with it (A11.4)."""
    given = {
        "group": "billing",
        "delivery": "exactly_once",
        "commit": "batch",
        "isolation_level": "read_uncommitted",
    }
    with pytest.raises(InvalidConfig) as caught:
        consumer_options(["orders"], given)
    assert sorted(caught.value.problems) == [
        'commit = "batch" with delivery = "exactly_once", which takes commit = "transaction": '
        "leave one of them out",
        'isolation_level = "read_uncommitted" with delivery = "exactly_once", which takes '
        'isolation_level = "read_committed": leave one of them out',
    ]


def test_exactly_once_spelt_out() -> None:
    """What the word sets may be said, too."""
    given = {"commit": "transaction", "isolation_level": "read_committed"}
    options = consumer_options(["orders"], {"group": "g", "delivery": "exactly_once", **given})
    assert options == consumer_options(["orders"], {"group": "g", **given})


def test_isolation_levels() -> None:
    """Committed records unless the program says otherwise."""
    assert consumer_options(["orders"], {}).isolation is IsolationLevel.READ_COMMITTED
    given = {"isolation_level": "read_uncommitted"}
    assert consumer_options(["orders"], given).isolation is IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize(
    ("topics", "given", "told"),
    [
        (["orders"], {"commit": "batch"}, 'commit: needs a group, as in group="billing"'),
        (["orders"], {"delivery": "at_least_once"}, "delivery: needs a group"),
        (["orders"], {"group": "billing", "commit": "always"}, "commit = 'always'"),
        (["orders"], {"group": "billing", "pattern": "x"}, "pattern: topics are named, too"),
        (
            [],
            {"group": "billing", "pattern": "x", "assign": [("orders", 0)]},
            "pattern: assign says already which partitions are read; leave one out",
        ),
        (
            [],
            {"group": "billing"},
            "nothing to read: name a topic, pattern='orders-.*', or assign=",
        ),
        ([], {"group": "billing", "pattern": "("}, "no regular expression"),
        (["orders"], {"group": "", "commit": "x"}, "group = ''"),
        (["orders"], {"group": "billing", "commit_interval_ms": -1}, "commit_interval_ms = -1"),
        (["orders"], {"group": "billing", "on_rebalance": 3}, "on_rebalance = 3"),
        (
            ["orders"],
            {"group": "billing", "delivery": "at_most_once", "commit": "batch"},
            'commit = "batch" with delivery = "at_most_once"',
        ),
        (["orders"], {"delivery": "exactly_once"}, "delivery: needs a group"),
        (["orders"], {"commit": "transaction"}, "commit: needs a group"),
    ],
)
def test_what_makes_no_sense_for_a_member(
    topics: list[Any], given: dict[str, Any], told: str
) -> None:
    """Refused, with the name and the value, all at once."""
    with pytest.raises(InvalidConfig) as caught:
        consumer_options(topics, given)
    assert told in str(caught.value)


def test_all_problems_are_told_together() -> None:
    """One run shows all of them."""
    with pytest.raises(InvalidConfig) as caught:
        consumer_options(["orders"], {"start": -1, "max_poll_records": 0, "prefetch_bytes": 0})
    assert len(caught.value.problems) == 3
