"""Planted bugs of whole brokers: the list of them, each with the faults that expose it.

The seeds of worlds that find them are in `planted_seeds.json`. One bug is none: `HARMLESS` shows
that worlds do not fail for everything. To count the worlds that find one:

    python -m tests.simulation.brokers.planted_bugs --seeds 20 --bug NAME

A change of the code changes the worlds; where a bug is not found afterwards, this searches for
other seeds and writes them to the file:

    python -m tests.simulation.brokers.planted_bugs --reseed --seeds 40
"""

from __future__ import annotations

from pathlib import Path

from jepsen_like.planted import brokers, clients, groups, replicas, tags
from tests.simulation import planting
from tests.simulation.brokers import planted_groups, planted_tasks
from tests.simulation.brokers.world import World
from tests.simulation.planting import Case, PlantedBugs
from tests.simulation.replication import planted_bugs as rules

SECONDS = 8.0  # of virtual time for each world: enough for the faults of one bug
SEEDS_FILE = Path(__file__).with_name("planted_seeds.json")


def _by(*kinds: str) -> Case:
    return Case((), kinds, SECONDS)


_CASES = {
    replicas.ack_before_followers_hold: _by("comeback"),
    replicas.hold_before_fsync: _by("darkness"),
    replicas.tell_before_fsync: _by("darkness"),
    replicas.count_what_is_fetched: _by("darkness"),
    replicas.answer_across_epochs: _by("comeback"),
    replicas.deny_what_was_appended: _by("restart"),
    rules.ignore_min_isr: _by("last_one"),
    rules.committed_isr_only: _by("newcomer"),
    rules.shrink_before_commit: _by("secession"),
    replicas.read_above_the_high_watermark: _by("comeback"),
    replicas.skip_the_divergence_answer: _by("comeback"),
    replicas.give_up_after_an_error: _by("comeback"),
    replicas.the_log_start_is_not_written: _by("delete_records", "kill_leader"),
    replicas.deletions_are_answered_alone: _by("trimmed"),
    replicas.leaders_begin_where_their_logs_do: _by("trimmed"),
    brokers.trust_an_old_registration: _by("amnesia"),
    brokers.trust_any_directory: _by("oblivion"),
    brokers.lead_for_the_predecessor: _by("blink"),
    brokers.stop_without_waiting: _by("restart", "restart_all"),
    brokers.elect_anybody: _by("outsider"),
    brokers.elect_in_the_same_epoch: _by("comeback"),
    brokers.a_name_is_enough: _by("recreate"),
    clients.a_failed_batch_goes_to_the_back: _by("kill_leader"),
    clients.send_before_the_answer: _by("kill_leader"),
    clients.deny_what_may_have_happened: _by("kill_leader"),
    replicas.numbers_are_not_looked_at: _by("kill_leader"),
    clients.a_cancelled_wait_takes_a_batch_along: _by("restart"),
    clients.the_rest_of_a_batch_is_dropped: _by("restart"),
    clients.a_late_answer_counts: _by("restart"),
    tags.untagged_records_never_pass: _by("restart"),
    tags.pass_over_what_is_not_committed: _by("comeback"),
    tags.segments_are_known_up_to_any_batch: _by("restart"),
    tags.positions_stay_where_nothing_passes: _by("restart"),
    groups.commits_of_any_generation: _by("zombie"),
    groups.tell_offsets_as_they_are_known_here: _by("slow_coordinator"),
    groups.sessions_do_not_end_here: _by("coordinator_off_brokers"),
    planted_groups.hand_out_while_revoking: _by("coordinator_off_brokers"),
    planted_groups.commit_what_is_in_hand: _by("coordinator_off_brokers"),
    planted_groups.revoke_without_waiting: _by("coordinator_off_brokers"),
    planted_groups.begin_anew_after_a_move: _by("coordinator_off_brokers"),
    planted_groups.commit_in_vain: _by("coordinator_off_brokers"),
    planted_groups.nobody_is_waited_for: _by("coordinator_off_brokers"),
    planted_groups.a_new_coordinator_knows_no_members: _by("kill_coordinator"),
    planted_groups.tell_the_plan_before_it_is_saved: _by("schism"),
    planted_tasks.an_old_epoch_is_accepted: _by("late_run"),
    planted_tasks.a_fence_begins_the_generation_anew: _by("late_run"),
    planted_tasks.a_lower_generation_may_begin: _by("late_fence"),
    planted_tasks.a_fence_is_answered_before_it_is_committed: _by("kill_fenced"),
    planted_tasks.only_the_leader_knows_of_fences: _by("kill_fenced"),
}
HARMLESS = replicas.high_watermarks_are_forgotten
HARMLESS_CASE = Case((0, 1), ("comeback", "restart", "kill_leader"), SECONDS)
BUGS = PlantedBugs(World, {**_CASES, HARMLESS: HARMLESS_CASE}, seeds_file=SEEDS_FILE)

if __name__ == "__main__":
    planting.main(BUGS, __doc__.splitlines()[0])
