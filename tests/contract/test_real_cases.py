"""Each rule finds something in a real program, by day: run under Hypocenter, or recorded by a run of it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from hypocenter.detect import engine, group_engine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).resolve().parents[1]
GALLERY = "gallery/test_gallery.py::test_fault_is_named"  # every planted fault is run by day
BEGINS, BEGUN = "session/observers/test_begins.py", "session/observers/test_begun_right.py"
LAWS, LOSSES = "session/observers/test_laws.py", "relations/test_losses.py"
FIELDS, VALUES = "session/observers/test_fields.py", "mindspore/test_rules_of_values.py"
ELSEWHERE = {
    "HC102": "session/test_torch_func.py::test_vmap_in_the_loss_is_a_part_of_the_step",
    "HC103": f"{VALUES}::test_hc103_an_update_breaks_a_parameter",
    "HC104": "session/test_inference.py::test_the_operation_of_the_first_bad_output_is_named",
    "HC105": f"{VALUES}::test_hc105_a_norm_turns_its_input_into_zeros",
    "HC106": f"{VALUES}::test_hc106_an_update_is_skipped",
    "HC107": f"{VALUES}::test_hc107_a_probed_value_is_not_finite",
    "HC201": "session/test_loss_scale.py::test_without_replay_the_collapse_is_said_and_nobody_accused",
    "HC205": "detect/test_growing_activations.py::test_the_overflow_lies_in_the_interval_said_long_before",
    "HC216": "session/misuse/test_misuse.py::test_what_is_only_a_fact_is_a_note",
    "HC217": "session/misuse/test_misuse.py::test_what_is_only_a_fact_is_a_note",
    "HC219": "session/test_hidden_nonfinite.py::test_the_trainers_log_is_finite_and_the_finding_says_why",
    "HC225": "session/observers/test_hyperparameters.py::test_plain_numbers_in_low_precision_state",
    "HC231": f"{LAWS}::test_an_average_that_is_swapped_in_and_not_back_is_told_at_any_step",
    "HC232": "session/observers/test_repeats.py::test_a_step_that_stops_to_repeat_itself_is_told",
    "HC233": f"{LAWS}::test_a_ratio_to_itself_has_no_gradient",
    "HC234": "session/observers/test_unwritten_memory.py::test_the_reader_and_the_maker_are_named",
    "HC235": "session/observers/test_own_memory.py::test_a_state_that_is_a_gradient_is_told",
    "HC236": "session/observers/test_precision.py::test_what_is_rounding_for_the_most_part_is_named",
    "HC237": "session/observers/test_modes.py::test_what_is_not_put_back_after_an_evaluation_is_a_warning",
    "HC238": "session/observers/test_clip_calls.py::test_a_clip_that_does_not_act_is_named",
    "HC239": f"{BEGINS}::test_a_seed_in_the_loop",
    "HC241": "relations/test_size_modes_inputs.py::test_a_division_by_the_size_of_the_batch",
    "HC242": "relations/test_relations.py::test_a_wrong_causal_mask_is_found_in_its_layer",
    "HC243": "relations/test_relations.py::test_padding_that_matters",
    "HC244": "relations/test_relations.py::test_labels_that_are_not_shifted",
    "HC245": "relations/test_own.py::test_in_a_run_it_is_a_finding_and_draws_nothing_from_the_program",
    "HC251": "session/observers/test_relations.py::test_a_loss_that_is_given_probabilities_is_told_once_by_default",
    "HC252": f"{LOSSES}::test_every_output_with_every_label",
    "HC253": "mindspore/test_rules_of_relations.py::test_hc253_a_bprop_that_is_not_the_derivative",
    "HC254": f"{BEGINS}::test_a_layer_of_equal_units",
    "HC255": f"{BEGINS}::test_a_checkpoint_with_other_names_for_a_part",
    "HC256": f"{LOSSES}::test_weights_sum_to_one_over_what_is_summed",
    "HC257": f"{BEGINS}::test_gradients_that_are_changed_too_late",
    "HC258": "relations/test_flat.py::test_what_has_no_gradient_is_named",
    "HC259": "session/observers/test_fresh_state.py::test_state_that_is_thrown_away_is_told_once",
    "HC261": "session/observers/test_mixtures.py::test_what_is_no_average_is_told_once",
    "HC262": f"{BEGUN}::test_what_is_frozen_and_moves_is_told",
    "HC263": f"{BEGUN}::test_a_norm_that_measures_nothing_is_told",
    "HC264": "session/observers/test_given.py::test_inputs_that_are_written_over_before_backward",
    "HC265": "session/observers/test_ties.py::test_a_tie_that_is_not_made_again",
    "HC266": "session/observers/test_hung_twice.py::test_what_hangs_twice_and_acts_twice",
    "HC267": "relations/test_left_on.py::test_what_nobody_switches_off_is_told",
    "HC305": "ranks/test_replicas.py::test_other_faults",
    "HC306": "ranks/test_replicas.py::test_other_faults",
    "HC308": "ranks/test_laws_over_ranks.py::test_what_breaks_a_law_is_named",
    "HC309": "ranks/test_laws_over_ranks.py::test_without_audits_a_gradient_that_is_not_shared_any_more_is_seen",
    "HC312": "ranks/test_collective_values.py::test_a_sum_that_overflows_is_not_a_fault_of_the_group",
    "HC313": "ranks/test_before_reduction.py::test_without_replay_it_is_a_warning_that_blames_no_device",
    "HC321": "drills/test_drills.py::test_the_collective_and_who_never_entered_it_are_told",
    "HC322": "drills/test_drills.py::test_a_recording_that_a_full_disk_cuts_short_is_told",
    "HC323": "ranks/test_pipeline_by_hand.py::test_ranks_in_different_collectives_are_told",
    "HC324": "session/observers/test_still_parameters.py::test_an_exception_inside_of_watch_is_a_death",
    "HC310": "ranks/test_tensor_copies.py::test_what_should_be_a_copy_is_told",
    "HC337": "ranks/test_averaging.py::test_labels_of_ranks_weigh_the_same",
    "HC338": "ranks/test_pipeline_by_hand.py::test_an_activation_that_is_used_twice_is_named",
    "HC343": "session/observers/test_sdc.py::test_alone_a_broken_device_and_a_wrong_kernel_look_the_same",
    "HC401": "session/observers/test_sdc.py::test_gradients_that_the_program_changes_accuse_no_device",
    "HC411": f"{FIELDS}::test_a_fault_is_said_at_its_step_and_nothing_else",
    "HC412": f"{FIELDS}::test_a_fault_is_said_at_its_step_and_nothing_else",
    "HC413": f"{FIELDS}::test_labels_apart_from_their_inputs_are_told_once_samples_came_before",
    "HC414": "session/observers/test_pairs.py::test_labels_of_another_batch_are_told_once",
    "HC415": "session/data_set/test_run.py::test_what_is_broken_is_told_once",
}


def of_gallery() -> set[str]:
    """Codes that answers of the gallery want."""
    answers = (TESTS / "gallery").glob("*.toml")
    return {code for path in answers for code in tomllib.loads(path.read_text(encoding="utf-8")).get("code", ())}


def test_every_rule_has_one() -> None:
    ours = {code for code in [*engine.rules(), *group_engine.group_rules()] if code.startswith("HC")}

    assert of_gallery().isdisjoint(ELSEWHERE), "what the gallery has needs no other place"
    assert of_gallery() | set(ELSEWHERE) == ours


def test_its_test_says_its_code() -> None:
    texts = {code: (TESTS / place.partition("::")[0]).read_text(encoding="utf-8") for code, place in ELSEWHERE.items()}

    unsaid = {code for code, text in texts.items() if code not in text and code.lower() not in text}
    assert unsaid == {"HC219"}  # it is folded into the finding of the step, which says its words


@pytest.mark.parametrize("place", sorted({*ELSEWHERE.values(), GALLERY}))
def test_it_is_there_and_runs_by_day(place: str, request: pytest.FixtureRequest) -> None:
    file, _, name = place.partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    tree = ast.parse(text)
    (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)

    whole = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) and is_mark(node)]
    assert not any(ast.unparse(mark).endswith(".night") for mark in test.decorator_list)
    assert not any(".night" in mark for mark in whole)
    collected = {item.nodeid.partition("[")[0] for item in request.session.items if item.path == TESTS / file}
    assert not collected or any(nodeid.endswith(f"::{name}") for nodeid in collected) or is_narrowed(request)


def is_mark(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


def is_narrowed(request: pytest.FixtureRequest) -> bool:
    """Whether a person has asked for some tests only."""
    return bool(request.config.option.keyword) or any("::" in word for word in request.config.args)
