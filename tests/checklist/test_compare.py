"""Two configurations, item by item: defaults, what follows, what cannot be told, unknown keys, and the status."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_sides import row, setting, side

from hypocenter.checklist.checklist import Checklist, Configuration, Row, Value
from hypocenter.checklist.compare import compare
from hypocenter.checklist.items.item import load

ITEMS = load()
LLAMA: dict[str, Value] = {
    "model.num_layers": 2, "model.hidden_size": 4096, "model.num_attention_heads": 32, "model.norm_eps": 1e-5,
    "optimizer.type": "adamw", "optimizer.beta2": 0.95, "optimizer.lr": 1e-5, "batch.global_batch_size": 512,
    "precision.compute_dtype": "bfloat16", "parallel.tensor": 2, "model.attention_dropout": 0.0,
}  # fmt: skip


def differing(found: Checklist) -> set[str]:
    return {row.item for row in found.rows if row.verdict == "different"}


def without(values: dict[str, Value], *items: str) -> dict[str, Value]:
    return {item: value for item, value in values.items() if item not in items}


def test_equal_sides_are_the_same_in_every_row_that_is_said() -> None:
    found = compare(side(LLAMA), side(LLAMA, label="b"))

    assert found.status == "same"
    assert {row.verdict for row in found.rows} == {"same", "not-set"}
    assert len([row for row in found.rows if row.verdict == "same"]) == len(LLAMA)
    assert found.sentence == f"same in all {len(LLAMA)} items that can be compared"


def test_exactly_the_planted_differences_are_told_the_weighty_first() -> None:
    planted = {**LLAMA, "model.norm_eps": 1e-6, "optimizer.beta2": 0.999, "parallel.tensor": 1}

    found = compare(side(LLAMA), side(planted, label="b"))

    assert found.status == "different"
    assert differing(found) == {"model.norm_eps", "optimizer.beta2", "parallel.tensor"}
    assert [row.item for row in found.rows[:3]] == ["model.norm_eps", "optimizer.beta2", "parallel.tensor"]
    assert found.sentence.startswith("different in 2 of 11 items: epsilon of the normalisation, beta2 of Adam")


def test_differences_of_no_weight_leave_the_sides_the_same() -> None:
    found = compare(side(LLAMA), side({**LLAMA, "parallel.tensor": 1}, label="b"))

    assert found.status == "same"
    assert "1 of little weight differs" in found.sentence


def test_a_default_counts_as_a_value_and_says_whose_it_is() -> None:
    one = side(without(LLAMA, "model.norm_eps"))
    default = setting("model.norm_eps", 1e-6, spelled="", where="", assumed="Transformers 4.48")
    one = Configuration(label="a", kinds=one.kinds, settings={**one.settings, "model.norm_eps": default})

    found = row(compare(one, side(LLAMA, label="b")), "model.norm_eps")

    assert (found.verdict, found.assumed) == ("different", True)
    assert found.baseline_setting is not None
    assert found.baseline_setting.assumed == "Transformers 4.48"
    assert found.fix == "made.yaml:7: norm_eps: 1e-06"


def test_what_was_measured_on_a_program_is_mended_in_the_program() -> None:
    other = side(LLAMA, label="runs/new")
    measured = setting("model.norm_eps", 1e-6, spelled="norm_eps: 1e-06", where="facts.json: LlamaRMSNorm")
    other = Configuration(label="b", kinds=other.kinds, settings={**other.settings, "model.norm_eps": measured})

    found = row(compare(side(LLAMA), other), "model.norm_eps")

    assert found.fix == "in the candidate's program, make it 1e-05 (epsilon of the normalisation)"


def test_what_one_side_says_alone_is_no_difference() -> None:
    found = compare(side(LLAMA), side(without(LLAMA, "optimizer.beta2"), label="b"))

    assert row(found, "optimizer.beta2").verdict == "only-baseline"
    assert found.status == "same"
    assert "1 said on one side only" in found.sentence


def test_a_thing_that_one_side_says_is_off_weighs_little() -> None:
    found = compare(side(LLAMA), side(without(LLAMA, "model.attention_dropout"), label="b"))

    assert (row(found, "model.attention_dropout").verdict, row(found, "model.attention_dropout").severity) == (
        "only-baseline",
        "note",
    )


def test_a_default_that_nobody_wrote_down_weighs_little_alone() -> None:
    default = setting("optimizer.beta2", 0.999, spelled="", where="", assumed="Megatron-LM 0.12")
    one = side(without(LLAMA, "optimizer.beta2"))
    one = Configuration(label="a", kinds=one.kinds, settings={**one.settings, "optimizer.beta2": default})

    found = row(compare(one, side(without(LLAMA, "optimizer.beta2"), label="b")), "optimizer.beta2")

    assert (found.verdict, found.severity) == ("only-baseline", "note")


def test_too_little_in_common_cannot_be_told() -> None:
    model = {key: value for key, value in LLAMA.items() if key.startswith("model.")}
    rest = {key: value for key, value in LLAMA.items() if not key.startswith("model.")}

    found = compare(side(model), side({**rest, "model.num_layers": 2}, label="b"))
    nothing = compare(side({}), side({}, label="b"))

    assert found.status == "cannot-tell"
    assert "can be compared" in found.sentence
    assert (nothing.status, nothing.sentence) == (
        "cannot-tell",
        "cannot tell: neither side says anything that a checklist knows",
    )


def test_what_is_not_resolved_or_no_number_cannot_be_told() -> None:
    lost = setting("optimizer.lr", None, unresolved="--lr $LR: the file alone does not say what this is")
    one = side(without(LLAMA, "optimizer.lr"))
    one = Configuration(label="a", kinds=one.kinds, settings={**one.settings, "optimizer.lr": lost})

    found = compare(one, side({**LLAMA, "model.num_layers": "many"}, label="b"))

    assert row(found, "optimizer.lr").verdict == "cannot-tell"
    assert "$LR" in row(found, "optimizer.lr").why
    assert row(found, "model.num_layers").why == "candidate: many is no whole number"
    assert found.status == "same"
    assert "2 that cannot be told" in found.sentence


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (("adam", "megatron-shell"), ("adamw", "mindformers-yaml"), "equivalent"),
        (("adam", "megatron-shell"), ("adam", "mindformers-yaml"), "different"),
        (("adam", "megatron-shell"), ("adam", "megatron-log"), "same"),
        (("adam", "megatron-shell"), ("adam", "deepspeed-json"), "equivalent"),
        (("adam", "mindformers-yaml"), ("adam", "mindformers-yaml"), "same"),
        (("adam", "mindformers-yaml"), ("adamw", "mindformers-yaml"), "different"),
    ],
)
def test_one_word_means_what_its_framework_means(one: tuple[str, str], other: tuple[str, str], verdict: str) -> None:
    sides = [side({"optimizer.type": value, "optimizer.weight_decay": 0.1}, kind=kind) for value, kind in (one, other)]

    found = row(compare(*sides), "optimizer.type")

    assert found.verdict == verdict
    assert ("AdamW" in found.why) == (verdict != "same" and one[1] != "mindformers-yaml")


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({"model.position_embedding": "rope"}, "equivalent"),
        ({"model.position_embedding": "rope", "model.rope_scaling": None}, "equivalent"),
        ({"model.position_embedding": "rope", "model.rope_scaling": "yarn"}, "different"),
        ({"model.position_embedding": "learned"}, "different"),
        ({}, "different"),
    ],
)
def test_the_longest_position_matters_where_positions_depend_on_it(more: dict[str, Value], verdict: str) -> None:
    found = compare(
        side({"model.max_position_embeddings": 4096, **more}),
        side({"model.max_position_embeddings": 32768, **more}, label="b"),
    )

    assert row(found, "model.max_position_embeddings").verdict == verdict


def test_the_recommended_value_of_the_candidate_is_not_talked_down() -> None:
    found = compare(side({"optimizer.beta2": 0.999}), side({"optimizer.beta2": 0.95}, label="b"))

    assert row(found, "optimizer.beta2").fix == (
        "made.yaml:7: beta2: 0.999; or give the baseline 0.95, which is recommended"
    )


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [(4096, None, "equivalent"), (8192, 4096, "equivalent"), (1024, None, "different"), (1024, 4096, "different")],
)
def test_a_window_that_reaches_over_the_whole_sequence_is_none(one: Value, other: Value, verdict: str) -> None:
    values: dict[str, Value] = {"model.seq_length": 4096}

    found = compare(
        side({**values, "model.sliding_window": one}), side({**values, "model.sliding_window": other}, label="b")
    )

    assert row(found, "model.sliding_window").verdict == verdict


def test_unknown_keys_are_carried_along() -> None:
    strange = setting("", 3, spelled="--strange 3", where="run.sh:4")

    found = compare(side(LLAMA, unknown=(strange,)), side(LLAMA, label="b", notes=("two files disagree",)))

    assert found.unknown_baseline == (strange,)
    assert found.unknown_candidate == ()
    assert found.notes == ("candidate: two files disagree",)


def test_a_key_of_a_foreign_reader_is_compared_too() -> None:
    found = compare(side({**LLAMA, "acme.magic": 3}), side({**LLAMA, "acme.magic": 4}, label="b"))

    assert row(found, "acme.magic").verdict == "different"
    assert found.status == "same"


def test_rows_about_batches_count_as_the_others_do() -> None:
    item = ITEMS.by_key["data.ids_in_range"]
    batches = Row(
        item=item.key, title=item.title, group="data", baseline="0 to 31999", candidate="0 to 40000",
        verdict="different", severity=item.importance, why=item.why,
    )  # fmt: skip

    without_them = compare(side(LLAMA), side(LLAMA, label="b"))
    found = compare(side(LLAMA), side(LLAMA, label="b"), extra_rows=[batches], samples=["a sample"])

    assert "data.ids_in_range" not in {row.item for row in without_them.rows}
    assert (found.status, found.rows[0], found.samples) == ("different", batches, ("a sample",))


@pytest.mark.parametrize(
    ("item", "values", "kind", "says"),
    [
        ("model.hidden_dropout", {"model.hidden_dropout": 0.1}, "megatron-shell", "dropout is on"),
        (
            "model.attention_dropout",
            {"model.attention_dropout": 0.1, "parallel.recompute": True},
            "mindformers-yaml",
            "must not recompute with dropout",
        ),
        ("moe.aux_loss_coeff", {"moe.aux_loss_coeff": 0.001}, "megatron-shell", "balancing loss is on"),
        ("moe.aux_loss_coeff", {"moe.aux_loss_coeff": 0.05}, "megatron-shell", "0.05 or more"),
        ("parallel.distributed_optimizer", {"parallel.distributed_optimizer": True}, "mindformers-yaml", "own way"),
        ("parallel.interleaved_copies", {"parallel.interleaved_copies": 2}, "mindformers-yaml", "several copies"),
        ("optimizer.warmup_steps", {"optimizer.warmup_steps": 100}, "hf-training", "warms up"),
        ("other.graph_fusion", {"other.graph_fusion": True}, "mindformers-yaml", "fusion is on"),
        ("other.overflow_mode", {"other.overflow_mode": "SATURATION_MODE"}, "mindformers-yaml", "saturate"),
        ("moe.router_dtype", {"moe.router_dtype": "bfloat16"}, "mindformers-yaml", "half precision"),
        ("precision.loss_dtype", {"precision.loss_dtype": "bfloat16"}, "megatron-shell", "half precision"),
        ("data.pad_token_id", {"data.pad_token_id": 32000, "model.vocab_size": 32000}, "hf-config", "outside"),
        ("data.eos_token_id", {"data.eos_token_id": (2, 32000), "model.vocab_size": 32000}, "hf-config", "outside"),
        ("optimizer.beta2", {"optimizer.beta2": 0.999}, "hf-training", "recommended: 0.95"),
    ],
)
def test_some_things_are_worth_saying_though_both_sides_agree(
    item: str, values: dict[str, Value], kind: str, says: str
) -> None:
    found = row(compare(side(values, kind=kind), side(values, label="b", kind=kind)), item)

    assert found.verdict == "same"
    assert [remark.side for remark in found.remarks if says in remark.text] == ["baseline and candidate"]


@pytest.mark.parametrize(
    ("item", "values", "kind"),
    [
        ("model.hidden_dropout", {"model.hidden_dropout": 0.0}, "megatron-shell"),
        ("parallel.distributed_optimizer", {"parallel.distributed_optimizer": True}, "megatron-shell"),
        ("data.pad_token_id", {"data.pad_token_id": 31999, "model.vocab_size": 32000}, "hf-config"),
        ("optimizer.beta2", {"optimizer.beta2": 0.95}, "hf-training"),
        ("moe.aux_loss_coeff", {"moe.aux_loss_coeff": 0.0}, "mindformers-yaml"),
    ],
)
def test_nothing_is_said_where_nothing_is_wrong(item: str, values: dict[str, Value], kind: str) -> None:
    found = row(compare(side(values, kind=kind), side(values, label="b", kind=kind)), item)

    assert found.remarks == ()


def test_recomputation_with_dropout_is_told_of_the_side_that_does_it_only() -> None:
    values: dict[str, Value] = {"model.attention_dropout": 0.1, "parallel.recompute": True}

    found = compare(side(values, kind="megatron-shell"), side(values, label="b", kind="mindformers-yaml"))

    told = {remark.side: remark.severity for remark in row(found, "model.attention_dropout").remarks}
    assert told == {"baseline and candidate": "warning", "candidate": "error"}


def test_items_of_ones_own_take_up_keys_that_nobody_knew(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'group = "acme"\ntitle = "our own"\n[[item]]\nkey = "acme.router_noise"\ntitle = "noise of the router"\n'
        'kind = "number"\nimportance = "error"\nwhy = "other experts are chosen"\nmanual = "Ours."\n'
        'names = ["router_noise", "model.noise"]\n',
        encoding="utf-8",
    )
    one = side(LLAMA, unknown=(setting("", 0.1, spelled="--router-noise 0.1"), setting("", 1, spelled="--else 1")))
    other = side(LLAMA, label="b", unknown=(setting("", "0.2", spelled="model.noise: 0.2"),))

    found = compare(one, other, load([own]))

    assert row(found, "acme.router_noise").verdict == "different"
    assert [one.spelled for one in found.unknown_baseline] == ["--else 1"]
    assert found.unknown_candidate == ()
    assert found.status == "different"


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 40), st.floats(allow_nan=True), st.text(max_size=6),
    st.sampled_from(["bfloat16", "bf16", "adam", "AdamW", "silu", "swiglu", "none", "0.1", "on", "position"]),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
)  # fmt: skip
SIDES = st.dictionaries(st.sampled_from(sorted(ITEMS.by_key)), VALUES, max_size=12)
KINDS = st.sampled_from(["megatron-shell", "mindformers-yaml", "hf-config", "deepspeed-json"])
MIRRORED = {"only-baseline": "only-candidate", "only-candidate": "only-baseline"}


@given(one=SIDES, other=SIDES, kinds=st.tuples(KINDS, KINDS))
def test_turning_the_sides_turns_the_verdicts(
    one: dict[str, Value], other: dict[str, Value], kinds: tuple[str, str]
) -> None:
    there = compare(side(one, kind=kinds[0]), side(other, kind=kinds[1]), ITEMS)
    back = compare(side(other, kind=kinds[1]), side(one, kind=kinds[0]), ITEMS)

    turned = {row.item: MIRRORED.get(row.verdict, row.verdict) for row in back.rows}
    assert {row.item: row.verdict for row in there.rows} == turned
    assert there.status == back.status


@given(values=SIDES, kind=KINDS)
def test_a_side_never_differs_from_itself(values: dict[str, Value], kind: str) -> None:
    found = compare(side(values, kind=kind), side(values, label="b", kind=kind), ITEMS)

    assert differing(found) == set()
    assert found.status != "different"
