"""Blocking calls have the parameters and docstrings of the asynchronous ones; none is missing."""

from __future__ import annotations

import ast

import pytest

from tests import sync_source

ADMIN = "raftmq.client.administration.admin"
CONSUMER = "raftmq.client.consumer.consumer"
PRODUCER = "raftmq.client.producer.producer"
NEW_CALL = '''\
    async def measure(self, topic: str, *, depth: Depth = 0) -> Sizes:
        """How large it is."""

'''
FUTURE = "from __future__ import annotations\n"
NEW_TYPES = "from somewhere import Depth, Sizes\n"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return sync_source.sources()


@pytest.mark.parametrize("module", sync_source.modules())
def test_blocking_calls_are_those_of_the_asynchronous_classes(
    texts: dict[str, str], module: str
) -> None:
    """Their parameters, their types, their docstrings, and those bodies that only call them."""
    assert sync_source.is_as_written(module, texts), (
        f"{module} is not what the asynchronous classes say: python -m tests.sync_source"
    )


@pytest.mark.parametrize("module", sync_source.modules())
def test_every_parameter_is_used(texts: dict[str, str], module: str) -> None:
    """A new parameter is not forgotten in a body that is written by hand."""
    assert sync_source.unread(module, texts) == []


def test_a_parameter_that_a_body_forgets(texts: dict[str, str]) -> None:
    """It is found."""
    name = "raftmq.sync.producer"
    changed = texts | {PRODUCER: texts[PRODUCER].replace("flush(self)", "flush(self, hard: bool)")}
    texts_then = texts | {name: sync_source.written(name, changed)}
    assert sync_source.unread(name, texts_then) == ["flush: hard"]


@pytest.mark.parametrize(
    ("source", "module", "before"),
    [
        (ADMIN, "admin", "delete_topic"),
        (CONSUMER, "consumer", "committed"),
        (PRODUCER, "producer", "flush"),
    ],
)
def test_a_new_call(texts: dict[str, str], source: str, module: str, before: str) -> None:
    """It is missed, and written, with types that the module did not know."""
    name, place = f"raftmq.sync.{module}", f"    async def {before}("
    text = texts[source].replace(place, f"{NEW_CALL}{place}")
    changed = texts | {source: text.replace(FUTURE, FUTURE + NEW_TYPES)}
    assert not sync_source.is_as_written(name, changed)
    wanted = sync_source.written(name, changed)
    assert "def measure(self, topic: str, *, depth: Depth=0) -> Sizes:" in wanted
    assert f"call(lambda: self._{module}.measure(topic, depth=depth))" in wanted
    assert "    from somewhere import Depth\n    from somewhere import Sizes\n" in wanted
    assert sync_source.is_as_written(name, changed | {name: wanted})


@pytest.mark.parametrize(
    ("source", "module", "old", "new"),
    [
        (ADMIN, "admin", "total: int", "total: float"),
        (ADMIN, "admin", "unclean: bool = False", "unclean: bool = True"),
        (PRODUCER, "producer", "flush(self)", "flush(self, *, hard: bool)"),
        (CONSUMER, "consumer", "Hand out and fetch nothing", "Hand out nothing"),
    ],
)
def test_a_call_that_has_changed(
    texts: dict[str, str], source: str, module: str, old: str, new: str
) -> None:
    """A type, a default, a parameter, and a word of a docstring."""
    assert old in texts[source]
    changed = texts | {source: texts[source].replace(old, new)}
    assert not sync_source.is_as_written(f"raftmq.sync.{module}", changed)


def test_a_call_that_is_gone(texts: dict[str, str]) -> None:
    """The blocking call that is left over is named."""
    changed = texts | {ADMIN: texts[ADMIN].replace("def broker_loads", "def _broker_loads")}
    with pytest.raises(AssertionError, match="broker_loads"):
        sync_source.written("raftmq.sync.admin", changed)


def test_calls_that_are_inherited(texts: dict[str, str]) -> None:
    """From a class that the program does not know: it is named."""
    changed = texts | {
        ADMIN: texts[ADMIN].replace("Admin(GroupCalls, ", "Admin(GroupCalls, Rules, ")
    }
    with pytest.raises(AssertionError, match=r"\['Rules'\]"):
        sync_source.written("raftmq.sync.admin", changed)


def test_a_body_by_hand_stays(texts: dict[str, str]) -> None:
    """Also if the parameters change."""
    name = "raftmq.sync.producer"
    changed = texts | {PRODUCER: texts[PRODUCER].replace("rows: Iterable", "rows: Sequence")}
    assert "if may_wait(rows):" in sync_source.written(name, changed)


def test_a_docstring_that_says_await(texts: dict[str, str]) -> None:
    """It would be wrong in the blocking SDK, and no rule replaces the word."""
    changed = texts | {ADMIN: texts[ADMIN].replace("All topics, by name.", "Topics: `await` it.")}
    with pytest.raises(AssertionError, match=r"list_topics: \['await'\]"):
        sync_source.written("raftmq.sync.admin", changed)


def test_what_is_written_can_be_read(texts: dict[str, str]) -> None:
    """A second pass changes nothing."""
    for module in sync_source.modules():
        once = sync_source.written(module, texts)
        ast.parse(once)
        assert sync_source.written(module, texts | {module: once}) == once
