"""Names of model libraries, wrappers, layers of pipeline stages, ports and layouts: the small rules."""

from __future__ import annotations

import pytest

from hypocenter.compare.comparison import Layout, SiteCard, Spot
from hypocenter.compare.matching import match
from hypocenter.compare.naming.tables import tables, unwrapped
from hypocenter.compare.pairing.ports import canonical_port
from hypocenter.record.facts_file import Facts, ModuleFacts


def parameter(site: str, *shape: int, module: str = "Linear", names: tuple[str, ...] = ()) -> SiteCard:
    spot = Spot(phase="param", site=site, port="value")
    return SiteCard(spot=spot, order=0, dtype="float32", shape=shape, module=module, names=names)


def value(site: str, port: str, *shape: int, call: int = 0, dtype: str = "float32") -> SiteCard:
    return SiteCard(spot=Spot(phase="forward", site=site, port=port, call=call), order=0, dtype=dtype, shape=shape)


def sites(matching):
    return {(tuple(s.site for s in p.baseline), tuple(s.site for s in p.candidate)): p.layout for p in matching.pairs}


@pytest.mark.parametrize("name", sorted(tables()))
def test_canonical_names_of_a_table_are_well_formed(name):
    table = tables()[name]

    assert table.about
    for where, canonical in {**table.sites, **table.layers, **table.layer, **table.parameters}.items():
        assert where.count("{}") >= canonical.count("{}")
    assert set(table.fused.values()) <= {"concatenated", "interleaved"}


@pytest.mark.parametrize(
    ("site", "plain"),
    [
        ("module.module.decoder.layers.0", "decoder.layers.0"),
        ("_orig_mod.layers._checkpoint_wrapped_module.0", "layers.0"),
        ("network._backbone.model.lm_head", "model.lm_head"),
        ("_fsdp_wrapped_module.a._fsdp_wrapped_module.weight", "a.weight"),
        ("layers.0.module_list", "layers.0.module_list"),
        ("", ""),
    ],
)
def test_wrappers_are_taken_off(site, plain):
    assert unwrapped(site) == plain


@pytest.mark.parametrize(
    ("port", "canonical"),
    [
        ("in[hidden_states]", "in[0]"), ("grad_in[x]", "grad_in[0]"), ("out[last_hidden_state]", "out[0]"),
        ("grad_out[logits]", "grad_out[0]"), ("out[0][0]", "out[0]"), ("in[kv][1]", "in[kv][1]"), ("value", "value"),
    ],
)  # fmt: skip
def test_a_port_by_position_or_by_keyword_is_the_same(port, canonical):
    assert canonical_port(port) == canonical


def test_calls_of_one_module_are_paired_by_number():
    ours = [value("a", "out[0]", 2, 8, call=n) for n in range(3)]

    matching = match(ours, ours[:2])

    assert [(p.baseline[0].call, p.candidate[0].call) for p in matching.pairs] == [(0, 0), (1, 1)]
    assert [card.spot.call for card in matching.unmatched_baseline] == [2]


def test_gpt2_conv1d_against_megatron_is_transposed():
    ours = [
        parameter("transformer.wte.weight", 100, 12),
        parameter("transformer.h.0.mlp.c_fc.weight", 12, 48, module="Conv1D"),
        parameter("transformer.h.0.attn.c_proj.weight", 12, 12, module="Conv1D"),
        parameter("transformer.ln_f.weight", 12),
    ]
    theirs = [
        parameter("embedding.word_embeddings.weight", 128, 12),
        parameter("decoder.layers.0.mlp.linear_fc1.weight", 48, 12),
        parameter("decoder.layers.0.self_attention.linear_proj.weight", 12, 12),
        parameter("decoder.final_layernorm.weight", 12),
    ]

    found = {pair[0][0]: layout for pair, layout in sites(match(ours, theirs)).items()}

    assert found == {
        "transformer.wte.weight": Layout(kind="padded", dim=0, sizes=(100,)),
        "transformer.h.0.mlp.c_fc.weight": Layout(kind="transposed"),
        "transformer.h.0.attn.c_proj.weight": Layout(kind="transposed"),
        "transformer.ln_f.weight": Layout(),
    }


def test_gpt2_fused_conv1d_against_split_projections_is_concatenated_and_turned():
    ours = [
        parameter("transformer.wte.weight", 100, 12),
        parameter("transformer.h.0.attn.c_attn.weight", 12, 36, module="Conv1D"),
        parameter("transformer.ln_f.weight", 12),
    ]
    theirs = [
        parameter("embedding.word_embeddings.weight", 100, 12),
        *(parameter(f"decoder.layers.0.self_attention.linear_{x}.weight", 12, 12) for x in "qkv"),
        parameter("decoder.final_layernorm.weight", 12),
    ]

    found = sites(match(ours, theirs))

    qkv = tuple(f"decoder.layers.0.self_attention.linear_{x}.weight" for x in "qkv")
    assert found[(("transformer.h.0.attn.c_attn.weight",), qkv)] == Layout(
        kind="concatenated", dim=0, sizes=(12, 12, 12), swapped=True
    )


def test_the_number_of_query_groups_is_read_off_facts_when_no_shape_shows_a_head():
    names = "qkv"
    ours = [
        parameter("model.embed_tokens.weight", 100, 12),
        *(
            parameter(f"model.layers.0.self_attn.{x}_proj.weight", n, 12)
            for x, n in zip(names, (24, 12, 12), strict=True)
        ),
        parameter("model.norm.weight", 12),
    ]
    theirs = [
        parameter("embedding.word_embeddings.weight", 100, 12),
        parameter("decoder.layers.0.self_attention.linear_qkv.weight", 48, 12),
        parameter("decoder.final_layernorm.weight", 12),
    ]
    facts = Facts(modules=(ModuleFacts(path="model.layers.0.self_attn", attributes={"head_dim": 4}),))

    blind, told = match(ours, theirs), match(ours, theirs, baseline_facts=facts)

    assert [max(sites(found).values(), key=lambda layout: len(layout.sizes)).groups for found in (blind, told)] == [
        0,
        3,
    ]


def test_a_shared_embedding_is_found_under_its_other_name():
    ours = [
        parameter("model.embed_tokens.weight", 100, 12, names=("model.embed_tokens.weight", "lm_head.weight")),
        parameter("model.norm.weight", 12),
        parameter("model.layers.0.mlp.up_proj.weight", 48, 12),
    ]
    theirs = [
        parameter("output.weight", 100, 12, names=("output.weight", "tok_embeddings.weight")),
        parameter("norm.weight", 12),
        parameter("layers.0.feed_forward.w3.weight", 48, 12),
    ]

    found = sites(match(ours, theirs))

    assert (("model.embed_tokens.weight",), ("output.weight",)) in found


def test_what_has_the_same_name_and_another_shape_is_left_over_and_said():
    matching = match([value("a", "out[0]", 2, 8)], [value("a", "out[0]", 4, 9)])

    assert matching.pairs == ()
    assert matching.notes == (
        "1 of the same name are not the same value, by shape or type; "
        "first a out[0]: float32 [2, 8] against float32 [4, 9]",
    )


def test_a_matcher_that_fails_is_left_out_and_said(monkeypatch):
    from hypocenter.compare import matching as chain
    from hypocenter.compare.pairing.chain import Matcher

    def broken(task):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(chain, "matchers", lambda plugins: [Matcher(name="acme", order=1, pair=broken)])

    found = match([value("a", "out[0]", 2, 8)], [value("a", "out[0]", 2, 8)])

    assert found.notes[0] == "matcher acme failed and was left out: ZeroDivisionError: by zero"
    assert len(found.unmatched_baseline) == 1


def test_gpt2_qkv_against_megatrons_is_fused_on_both_sides_in_another_order():
    ours = [
        parameter("transformer.wte.weight", 100, 12),
        parameter("transformer.h.0.attn.c_attn.weight", 12, 36, module="Conv1D"),
        parameter("transformer.ln_f.weight", 12),
    ]
    theirs = [
        parameter("embedding.word_embeddings.weight", 100, 12),
        parameter("decoder.layers.0.self_attention.linear_qkv.weight", 36, 12),
        parameter("decoder.final_layernorm.weight", 12),
    ]

    found = {pair[0][0]: layout for pair, layout in sites(match(ours, theirs)).items()}

    assert found["transformer.h.0.attn.c_attn.weight"] == Layout(kind="interleaved", dim=0, groups=0, swapped=True)
