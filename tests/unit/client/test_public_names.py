"""What `import raftmq` has: every error, the modules, what calls return; and how quickly."""

from __future__ import annotations

import subprocess
import sys
from operator import attrgetter

import pytest

import raftmq
from raftmq.client.administration.admin import Admin


def test_every_error_is_a_name_of_the_package() -> None:
    """A program writes `except raftmq.TopicAlreadyExists` after `import raftmq` alone."""
    for name in raftmq.errors.__all__:
        assert getattr(raftmq, name) is getattr(raftmq.errors, name)
    assert issubclass(raftmq.TopicAlreadyExists, raftmq.RaftmqError)


def test_results_of_the_admin_are_names_of_the_package() -> None:
    """For the annotations of a program; what a call returns is found without reading the code."""
    for name in ("CreatedTopic", "Health", "GroupOffset", "PartitionLag", "TopicDetails"):
        assert name in dir(raftmq)
        assert getattr(raftmq, name).__doc__
    assert raftmq.Admin is Admin
    assert raftmq.sync.Admin.__name__ == "Admin"


def test_all_names_can_be_imported() -> None:
    """`dir`, the star and `getattr` agree."""
    found: dict[str, object] = {}
    exec("from raftmq import *", found)  # a star is for modules only
    assert set(dir(raftmq)) == {name for name in found if name != "__builtins__"}


@pytest.mark.parametrize(
    "name", ["Consumer", "ConsumerRecord", "ConsumedBatch", "Producer", "sync.Consumer"]
)
def test_types_of_values_in_annotations(name: str) -> None:
    """A web framework evaluates the annotations of a program, one of which names only the value."""
    owner = attrgetter(name)(raftmq)
    for types in ((int,), (int, str)):
        alias = owner[types]
        assert (alias.__origin__, alias.__args__) == (owner, types)


def test_a_name_that_there_is_not() -> None:
    """An AttributeError that names it, as for other modules."""
    with pytest.raises(AttributeError, match="'raftmq' has no attribute 'Produzer'"):
        _ = raftmq.Produzer


def test_the_package_alone_imports_nothing_of_the_sdk() -> None:
    """`raftmq --help` and commands that need no client start without it."""
    program = "import raftmq, sys; print([n for n in sys.modules if n.startswith('raftmq.')])"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "['raftmq.version']"
    program = "import raftmq; raftmq.errors.Closed"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "owner",
    [
        raftmq.Client,
        raftmq.Producer,
        raftmq.Delivery,
        raftmq.sync.Client,
        raftmq.sync.Producer,
        raftmq.sync.Delivery,
    ],
)
def test_help_shows_what_programs_call(owner: type) -> None:
    """Each public name is explained, a `timeout` with its unit; internals have an underscore."""
    public = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    for name, call in public.items():
        assert call.__doc__, name
        code = getattr(call, "__code__", None)
        if code is not None and "timeout" in code.co_varnames:
            assert "timeout: seconds" in call.__doc__, name
    internals = {"settle", "claim", "call_back", "check_open", "check_size", "topic", "is_claimed"}
    assert not internals & public.keys()
