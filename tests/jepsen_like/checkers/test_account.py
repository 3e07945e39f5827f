"""How events become an account: what began is paired with its end, every value has an outcome."""

from __future__ import annotations

import pytest

from jepsen_like.checkers.account import Account
from jepsen_like.history.event import BadHistory, Event, Type
from tests.jepsen_like.checkers.script import Script


def test_a_send_that_never_ended_is_unknown() -> None:
    """It may have happened, so it is neither acknowledged nor certain not to be."""
    script = Script()
    script.begin(0, "send", {"key": "k", "acks": -1, "values": [1]})
    account = Account(script.events)
    assert account.outcomes == {("send", Type.INFO): 1}
    assert account.keys["k"].acknowledged == {}
    assert set(account.keys["k"].senders) == {1}


def test_of_an_unknown_send_what_has_an_offset_was_acknowledged() -> None:
    """The other values are unknown, as the send is."""
    script = Script()
    script.send([1, 2, 3], [0, None, 7], kind=Type.INFO)
    assert Account(script.events).keys["k"].acknowledged == {1: 0, 3: 7}


def test_of_a_send_that_is_done_every_value_was_acknowledged() -> None:
    """Also where nobody says at which offset."""
    script = Script()
    script.send([1, 2], [0, None])
    script.send([3], acks=1)
    key = Account(script.events).keys["k"]
    assert key.acknowledged == {1: 0, 2: None}
    assert key.lightly == {3: None}


def test_who_crashes_in_the_midst_leaves_it_unknown() -> None:
    """And what it was assigned is forgotten with it."""
    script = Script()
    script.begin(0, "poll")
    script.crash(0)
    assert Account(script.events).outcomes == {("poll", Type.INFO): 1}


def test_an_end_without_beginning_is_no_history() -> None:
    """Nothing can be said of when it happened, so nothing is said at all."""
    script = Script()
    script.end(0, "poll", {"records": []})
    with pytest.raises(BadHistory, match="event 0: process 0 ends 'poll', which it did not begin"):
        Account(script.events)


def test_two_at_once_of_one_process_is_no_history() -> None:
    """A process does one thing after the other."""
    script = Script()
    script.begin(0, "poll")
    script.begin(0, "poll")
    with pytest.raises(BadHistory, match="event 1: process 0 has not ended its last"):
        Account(script.events)


def test_offsets_of_another_number_are_no_history() -> None:
    """Each belongs to one value."""
    script = Script()
    script.send([1, 2], [0])
    with pytest.raises(BadHistory, match="1 offsets of 2 values"):
        Account(script.events)


def test_what_is_not_of_the_form_is_named() -> None:
    """By its number, what it was to be, and what is missing."""
    events = [Event(0, 0.0, 3, Type.INVOKE, "send", {"acks": -1})]
    with pytest.raises(BadHistory, match=r"event 0: invoke of 'send' .* KeyError\('values'\)"):
        Account(events)


def test_of_a_node_one_must_say_which() -> None:
    """Who leads, and whose log it is, cannot be guessed."""
    events = [Event(0, 0.0, "node", Type.INFO, "leads", {"key": "k", "epoch": 1})]
    with pytest.raises(BadHistory, match="'leads' does not say of which node"):
        Account(events)
