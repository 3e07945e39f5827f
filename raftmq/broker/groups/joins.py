"""JoinGroup: admission to a group; newcomers, members that join again, returning static members.

Owns the cases; what follows from them is the rebalance's business.

    no id                   gets an id to join with: a retry or a late copy is then no second
                            member, and no second process of a static one
    an id given out         a new member; of a known instance: replaces the process that had it.
                            That one is fenced, and so are processes with earlier ids
    a member                preparing: has joined. completing: gets the same answer again. stable:
                            likewise if it has asked for no assignment yet, else a rebalance: in
                            no generation may a member own a partition twice
    a changed subscription  at any time: rebalance
    another filter          than the other members have: refused, and nothing changes for them. Of
                            the only member: the group's from now on, with a rebalance
    an earlier number       a late copy, changes nothing: its sender may not own any more what it
                            claims
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.broker.groups.members import MemberState
from raftmq.broker.groups.phases import SUBSCRIPTION_BYTES_MAX, MemberIds, Phase
from raftmq.broker.groups.rebalance import refused
from raftmq.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupFilter,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
)
from raftmq.wire.messages.groups import JoinGroupReply, interest_in
from raftmq.wire.tag_clauses import expression_of

if TYPE_CHECKING:
    from raftmq.broker.groups.phases import GroupOutbox, GroupSettings, Token
    from raftmq.broker.groups.rebalance import GroupRebalance
    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.groups import JoinGroup


FILTER_CHARS_SHOWN = 150  # two of them and the way out have to fit into a message


class Join(NamedTuple):
    """A request, the token of its answer, and what the broker knows about its sender."""

    request: JoinGroup
    token: Token
    client_id: str
    host: str
    new_member_id: str
    now: float

    @property
    def protocols(self) -> dict[str, bytes]:
        return {protocol.name: protocol.subscription for protocol in self.request.protocols}

    @property
    def tags(self) -> str:
        """Its filter, as an expression; empty: none."""
        return expression_of(self.request.tags)


class Joins:
    def __init__(
        self,
        name: str,
        rebalance: GroupRebalance,
        outbox: GroupOutbox,
        settings: GroupSettings,
        *,
        slot_epoch: int,
    ) -> None:
        self._name, self._outbox, self._settings = name, outbox, settings
        self._rebalance, self._members = rebalance, rebalance.members
        self._ids = MemberIds(slot_epoch)

    def on_join(self, join: Join) -> None:
        request = join.request
        known = self._known(request)
        if self._is_late(request):  # before anything else, as it must change nothing
            self._refuse(join, RebalanceInProgress(f"{request.member_id} has joined again since"))
            return
        refusal = self._refusal(join, known)
        # Members of the time before are asked for their assignors; see `_protocol_refusal`.
        if isinstance(refusal, RebalanceInProgress):
            self._rebalance.begin(join.now)
        if refusal is not None:  # nothing was changed but what the refusal itself began
            self._refuse(join, refusal)
            # Its id is void then, and the group need not wait for it.
            self._give_up(request.member_id, join.now)
        elif not request.member_id:  # first step: an id
            self._give_id(join)
        elif known is None:  # second step: a new member
            self._add(join, request.member_id)
        elif known.member_id == request.member_id:  # a member joins again
            self._on_member(join, known)
        else:
            self._on_return(join, known)

    def _is_late(self, request: JoinGroup) -> bool:
        """A copy of an earlier request: its sender does not wait for that answer any more."""
        member = self._members.get(request.member_id)
        return member is not None and 0 < request.number < member.join_number

    def _known(self, request: JoinGroup) -> MemberState | None:
        """The member that it is, or whose place it wants to take; not whether it may."""
        member_id, instance_id = request.member_id, request.instance_id
        # A new process of an instance has an id of its own, so the instance finds the member.
        is_new = not member_id or self._members.expects(member_id, instance_id)
        if is_new and instance_id is not None:
            return self._members.of_instance(instance_id)
        return self._members.get(member_id)

    # -- refusals --------------------------------------------------------------------------

    def _refusal(self, join: Join, known: MemberState | None) -> RaftmqError | None:
        return (
            self._identity_refusal(join.request)
            or self._timeout_refusal(join.request.session_timeout_ms)
            or self._filter_refusal(join, known)  # the next one may begin a rebalance
            or self._protocol_refusal(join, known)
            or self._size_refusal(join, known)
        )

    def _identity_refusal(self, request: JoinGroup) -> RaftmqError | None:
        member_id = request.member_id
        # A newcomer, or one with an id that was just given to it: nothing to compare.
        if not member_id or self._members.expects(member_id, request.instance_id):
            return None
        return self._members.refusal(member_id, request.instance_id)

    def _timeout_refusal(self, timeout_ms: int) -> RaftmqError | None:
        try:
            self._settings.check_session_timeout(self._name, timeout_ms)
        except InvalidSessionTimeout as error:  # an error value here, as the other refusals are
            return error
        return None

    def _filter_refusal(self, join: Join, known: MemberState | None) -> RaftmqError | None:
        """All members have one filter: else a record would be read or not, and be done with, by
        which of them has its partition.
        """
        have_others = len(self._members) > (known is not None)
        there = self._rebalance.tags
        if not have_others or join.tags == there:
            return None
        return InconsistentGroupFilter(
            f"group {self._name}: its members read by {_shown(there)}, this one by"
            f" {_shown(join.tags)}. Stop all members and start them with the new filter (a member"
            " that was killed, or that has a group_instance_id, stays one until its session ends),"
            " or use another group"
        )

    def _protocol_refusal(self, join: Join, known: MemberState | None) -> RaftmqError | None:
        """There must be an assignor that all members know. Of members that have not joined since
        this coordinator took over, only the saved one is known: they are asked for theirs first.
        """
        request, names = join.request, join.protocols
        # A plan names its protocol, so an empty name could not be distinguished from none.
        if not request.protocol_type or "" in names:
            return InconsistentGroupProtocol(f"group {self._name}: a protocol needs a name")
        # The first member decides.
        if not len(self._members):
            return None
        # Assignors of another type cannot read these subscriptions.
        if request.protocol_type != self._rebalance.protocol_type:
            return InconsistentGroupProtocol(
                f"group {self._name} is of type {self._rebalance.protocol_type}, not"
                f" {request.protocol_type}: use another group"
            )
        # `known` leaves its own protocols behind when it joins again.
        if self._members.common(names, without=known):
            return None
        # Their next joins name all assignors; then it is decided.
        if self._members.may_know_more(without=known):
            return RebalanceInProgress(
                f"group {self._name}: its members are asked whether they know one of"
                f" {', '.join(names)}"
            )
        return InconsistentGroupProtocol(
            f"group {self._name}: its members know none of {', '.join(names)}: use the same"
            " assignors in all of them"
        )

    def _size_refusal(self, join: Join, known: MemberState | None) -> RaftmqError | None:
        members, most = self._members, self._settings.size_max
        if known is None and len(members) >= most:  # members that join again are counted already
            return GroupMaxSizeReached(f"group {self._name} has {len(members)} members already")
        # Ids cost nothing to ask for: bound them too.
        if not join.request.member_id and len(members.pending) >= most:
            return GroupMaxSizeReached(
                f"group {self._name}: {len(members.pending)} are about to join: try later"
            )
        # Half of a command, see SUBSCRIPTION_BYTES_MAX: a plan that cannot be saved is of no use.
        longest = max(map(len, join.protocols.values()), default=0)
        total = members.subscription_bytes + longest - (known.subscription_bytes if known else 0)
        if total <= SUBSCRIPTION_BYTES_MAX:  # the plan will fit into one command
            return None
        return GroupMaxSizeReached(
            f"group {self._name}: subscriptions of {total} bytes, at most"
            f" {SUBSCRIPTION_BYTES_MAX}: fewer members, or fewer topics"
        )

    def _refuse(self, join: Join, error: RaftmqError, *, member_id: str = "") -> None:
        body = refused(JoinGroupReply, error)
        # Also with an error the client learns its id.
        if member_id:
            body = JoinGroupReply(error=body.error, message=body.message, member_id=member_id)
        self._outbox.answer(join.token, body)

    def _give_up(self, member_id: str, now: float) -> None:
        """A refused newcomer is not waited for."""
        if self._members.pending.pop(member_id, None) is not None:
            self._rebalance.maybe_complete(now)

    # -- newcomers -------------------------------------------------------------------------

    def _give_id(self, join: Join) -> None:
        request = join.request
        member_id = self._ids.new(join.new_member_id, join.now)
        # The id expires like a session: the group waits for it that long.
        until = join.now + request.session_timeout_ms / 1000
        self._members.expect(member_id, request.instance_id, until)
        error = MemberIdRequired(f"group {self._name}: join once more, as {member_id}")
        self._refuse(join, error, member_id=member_id)

    def _add(self, join: Join, member_id: str) -> None:
        # The first member of an empty group defines its type.
        if not len(self._members):
            self._rebalance.protocol_type = join.request.protocol_type
        member = MemberState(member_id, join.request.instance_id)
        self._members.add(member)
        self._update(member, join)
        self._rebalance.on_growth()
        self._rebalance.begin(join.now)
        self._wait(member, join)

    def _wait(self, member: MemberState, join: Join) -> None:
        self._members.wait_join(member, join.token)
        self._rebalance.maybe_complete(join.now)

    def _update(self, member: MemberState, join: Join) -> None:
        member.client_id, member.host = join.client_id, join.host
        member.session_timeout_ms = join.request.session_timeout_ms
        member.rebalance_timeout_ms = join.request.rebalance_timeout_ms
        member.is_remembered, member.join_number = False, join.request.number
        self._members.set_protocols(member, join.protocols)
        self._rebalance.tags = join.tags  # of the others, too, or there are none

    # -- members who come again ------------------------------------------------------------

    def _on_member(self, join: Join, member: MemberState) -> None:
        self._withdraw(member, join.now)
        phase = self._rebalance.phase
        is_same = _same(member.protocols, join.protocols) and join.tags == self._rebalance.tags
        self._update(member, join)
        # Retried after a lost answer: the generation is not over, so the same answer does.
        if phase is Phase.COMPLETING and is_same:
            self._rebalance.on_unsynced(member, join.now)
            self._tell_again(member, join)
        # The same. Who has asked may have had its assignment, and lost it since: if it got it back
        # in this generation, the offsets of a transaction that it has on its way from before would
        # be accepted behind its back. A leader has asked: it joins to make a new plan.
        elif phase is Phase.STABLE and is_same and not self._rebalance.has_asked(member):
            # Told when the return of a static member is saved: until then the offsets of the
            # process before it are accepted.
            if self._outbox.is_saving:
                self._members.wait_join(member, join.token)
            else:
                self._tell_again(member, join)
        else:
            self._rebalance.begin(join.now)
            self._wait(member, join)

    def _tell_again(self, member: MemberState, join: Join) -> None:
        self._members.wait_join(member, join.token)
        self._rebalance.tell_joined(member, join.now)

    def _withdraw(self, member: MemberState, now: float) -> None:
        """It has asked again, so its earlier request was given up."""
        if member.is_waiting:
            error = RebalanceInProgress(f"group {self._name}: {member.member_id} joined again")
            self._rebalance.refuse(member, error, now)

    def _on_return(self, join: Join, member: MemberState) -> None:
        """A static member is back as another process. If nothing changes for the others no
        rebalance is needed: it gets the assignment it had, as soon as its new id is saved. The plan
        stays next to the subscription that it was made with.
        """
        rebalance, old = self._rebalance, member.member_id
        # The process before is still connected: two have the same instance id.
        if member.is_waiting:
            error = FencedInstanceId(
                f"group {self._name}: another process has joined as instance {member.instance_id}"
            )
            rebalance.refuse(member, error, join.now)
        protocol = rebalance.protocol
        planned = member.protocols.get(protocol)
        is_same = _wants_the_same(planned, join.protocols.get(protocol))
        is_same = is_same and join.tags == rebalance.tags
        # Nobody tells whether it was stopped or has died: a static member does not leave.
        rebalance.note_crash(member)
        self._members.rename(member, join.request.member_id)
        rebalance.on_renamed(old, member.member_id)
        self._update(member, join)
        # Another protocol would win the vote: then the plan could not be decoded by all.
        stays = rebalance.phase is Phase.STABLE and is_same and self._members.vote() == protocol
        if stays and planned is not None:
            self._members.set_protocols(member, join.protocols | {protocol: planned})
            self._members.wait_join(member, join.token)
            rebalance.save_as_it_is()
        else:
            rebalance.begin(join.now)
            self._wait(member, join)


def _wants_the_same(known: bytes | None, told: bytes | None) -> bool:
    """A process that was away claims nothing: a change of claims alone concerns no other."""
    if known is None or told is None:
        return False
    interest = interest_in(told)
    return known == told or (interest is not None and interest == interest_in(known))


def _shown(tags: str) -> str:
    if not tags:
        return "no filter"
    is_short = len(tags) <= FILTER_CHARS_SHOWN
    return f"filter {tags if is_short else tags[:FILTER_CHARS_SHOWN] + '…'}"


def _same(known: dict[str, bytes], protocols: dict[str, bytes]) -> bool:
    """Also in the same order, which is the order of preference."""
    return list(known.items()) == list(protocols.items())
