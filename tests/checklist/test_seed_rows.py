"""Every row of the seeds' tables: the same, a difference, and other words for it, which are told with a reason."""

from __future__ import annotations

import pytest
from made_sides import Said, row, side_of
from seed_rows import CASES, MEASURED, Case

from hypocenter.checklist.checklist import Row, Value
from hypocenter.checklist.compare import compare
from hypocenter.checklist.items.item import load

ITEMS = load()
NAMES = [f"{case.row}-{case.item}-{case.other}" for case in CASES]

# The tables of the guide, row by row, in their order; what is no name there is in English here.
TABLES = {
    "structure": (
        "num_layers", "num_heads", "hidden_size", "intermediate_size", "n_kv_heads", "normalisation function",
        "rms_norm_eps", "dropout", "fused computation",
    ),
    "moe": (
        "expert_num", "num_experts_chosen", "capacity_factor", "aux_loss_factor", "enable_sdrop", "router_dense_type",
        "use_fused_ops_topkrouter", "use_shared_expert_gating",
    ),
    "optimizer": (
        "adam", "eps", "beta1", "beta2", "weight_decay", "lr", "lr_warmup_fraction", "clip_grad", "global_batch_size",
    ),
    "weights": ("param_init_type", "init_method_std"),
    "precision": (
        "compute_dtype", "layernorm_compute_type", "softmax_compute_type", "rotary_dtype", "weights in computation",
        "bias add", "residual add", "loss", "high-precision operators",
    ),
    "parallel": (
        "data_parallel", "model_parallel", "pipeline_stage", "use_seq_parallel", "enable_parallel_optimizer",
        "micro_batch_interleave_num",
    ),
    "other": (
        "data", "special tokens", "input_ids", "overflow mode", "graph fusion",
        "same template in training and inference", "versions", "differences from the published model",
    ),
    "alignment": ("num_layers", "learning_rate_type", "warmup_steps", "adam_eps", "dropout"),
}  # fmt: skip
ROWS = [f"{table}/{name}" for table, names in TABLES.items() for name in names]


def compared(item: str, one: Said, other: Said) -> Row:
    return row(compare(side_of(item, one), side_of(item, other, "b"), ITEMS), item)


def said(value: Value) -> Said:
    return Said(value=value)


def test_every_row_is_answered_by_items_and_has_a_case() -> None:
    answered = {row for item in ITEMS.by_key.values() for row in item.rows}

    assert answered == set(ROWS)
    assert {case.row for case in CASES} == set(ROWS) - set(MEASURED)
    assert {(row, item.key) for item in ITEMS.by_key.values() for row in item.rows if not item.measured} == {
        (case.row, case.item) for case in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_same_value_is_the_same(case: Case) -> None:
    found = compared(case.item, said(case.one), said(case.one))

    assert (found.verdict, found.why) == ("same", "")


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_another_value_differs_and_says_what_it_does(case: Case) -> None:
    found = compared(case.item, said(case.one), said(case.other))
    turned = compared(case.item, said(case.other), said(case.one))

    assert (found.verdict, turned.verdict) == ("different", "different")
    assert found.why.startswith(ITEMS.by_key[case.item].why)
    assert found.fix
    assert (found.baseline, found.candidate) == (case.one, case.other)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_other_words_for_it_mean_the_same_with_a_reason(case: Case) -> None:
    item = ITEMS.by_key[case.item]
    if case.alike is None:
        assert item.no_equivalent, "say in the item why nothing else means the same, or give the case a pair"
        return

    found = compared(case.item, *case.alike)
    turned = compared(case.item, *reversed(case.alike))

    assert not item.no_equivalent
    assert (found.verdict, turned.verdict) == ("equivalent", "equivalent")
    assert found.why
