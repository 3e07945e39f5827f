"""Names of options: what nobody knows is refused, with what may be meant."""

from __future__ import annotations

import pytest

from raftmq.client.options import check_options

KNOWN = ("acks", "linger_ms", "batch_size")


def test_known_names() -> None:
    """Nothing to say about them."""
    check_options("producer", {}, KNOWN)
    check_options("producer", {"acks": 1, "linger_ms": 0}, KNOWN)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("linger", "'linger' (did you mean 'linger_ms'?);"),
        ("lingerMs", "'lingerMs' (did you mean 'linger_ms'?);"),
        ("Acks", "'Acks' (did you mean 'acks'?);"),
        ("num_partitions", "'num_partitions' (did you mean 'partitions'?);"),
        ("enable_auto_commit", "no option 'enable_auto_commit'; the options are"),
        ("colour", "no option 'colour'; the options are acks, batch_size, linger_ms, partitions"),
    ],
)
def test_an_unknown_name(given: str, told: str) -> None:
    """It is named, with the one that is most like it, if one is."""
    with pytest.raises(TypeError) as caught:
        check_options("producer", {given: 1}, [*KNOWN, "partitions"])
    assert told in str(caught.value)
    assert str(caught.value).startswith("producer: ")


def test_all_unknown_names_are_told_together() -> None:
    """Two typing errors need one run to be found."""
    with pytest.raises(TypeError, match=r"'ack'.*'batchsize'"):
        check_options("producer", {"ack": 1, "batchsize": 2}, KNOWN)


def test_each_option_is_named_once() -> None:
    """Though several may know of it."""
    with pytest.raises(TypeError, match=r"the options are acks, batch_size, linger_ms$"):
        check_options("producer", {"colour": 1}, [*KNOWN, "acks"])
