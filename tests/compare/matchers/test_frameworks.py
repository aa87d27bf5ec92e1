"""Issue 5, acceptance 2: a Hugging Face network against the same one in other namings, with fused QKV and gate-up.

All have the same weights and see the same batches, so that a right pair holds the same values and a wrong one does not.
"""

from __future__ import annotations

import functools
import math
import random
import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import megatron_gpt, mindformers_llama, torchtitan_llama
from networks.recorded import record

from hypocenter.compare.comparison import Layout, Matching, Pair, SiteCard
from hypocenter.compare.matching import match
from hypocenter.compare.pairing.layouts import layout_of
from hypocenter.compare.pairing.manual_map import draft_map, parse_map

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SIZES = {
    "vocab_size": 128, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
NETWORKS = {
    "megatron": (megatron_gpt.GPTModel, megatron_gpt.converted, {}),
    "megatron-te": (megatron_gpt.GPTModel, megatron_gpt.converted, {"fused_norm": True}),
    "megatron-padded": (megatron_gpt.GPTModel, megatron_gpt.converted, {"padding": 64}),
    "mindformers": (mindformers_llama.LlamaForCausalLM, mindformers_llama.converted, {}),
    "mindformers-concatenated": (
        mindformers_llama.LlamaForCausalLM,
        mindformers_llama.converted,
        {"concatenated": True},
    ),
    "torchtitan": (torchtitan_llama.Transformer, torchtitan_llama.converted, {}),
}
FAMILIES = {"Llama": tuple(NETWORKS), "Qwen2": tuple(NETWORKS), "Qwen3": ("megatron", "megatron-te")}
ACTIVATIONS = ("forward", "backward")
WITHOUT_COUNTERPART = {
    "megatron": {
        "model.layers.N.mlp.act_fn",  # a function there, inside of the MLP's own code
        "rotary_pos_emb",  # gives angles: the other network's module gives their cosines and sines
    }
}
CASES = [(family, network) for family, networks in FAMILIES.items() for network in networks]


@functools.cache
def hugging_face(family: str):
    """Configuration, weights and recording of a small network with weights that are all different."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES)
    config.head_dim = getattr(config, "head_dim", None) or 12
    if family == "Qwen3":
        config = transformers.Qwen3Config(**SIZES, head_dim=12)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    cards = record(model, lambda ids: model(input_ids=ids, labels=ids).loss, folder() / "run")
    return config, weights, cards


@functools.cache
def other(family: str, network: str):
    """Weights and recording of the same network in another naming."""
    torch.set_num_threads(1)
    config, weights, _ = hugging_face(family)
    build, convert, options = NETWORKS[network]
    model = build(config, **options)
    model.load_state_dict(convert(weights, config, **options))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return state, record(model, model.loss, folder() / "run")


def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="hypocenter-networks-"))


@functools.cache
def matched(family: str, network: str) -> Matching:
    return match(hugging_face(family)[2], other(family, network)[1])


def left_over(cards: Iterable[SiteCard], phase: str) -> list[str]:
    return [card.spot.site for card in cards if card.spot.phase == phase]


@pytest.mark.parametrize(("family", "network"), CASES)
def test_every_parameter_is_paired(family, network):
    matching = matched(family, network)

    for phase in ("param", "grad", "optimizer"):
        assert left_over(matching.unmatched_baseline, phase) == []
        assert left_over(matching.unmatched_candidate, phase) == []
    assert {pair.by for pair in matching.pairs} <= {"exact", "renamed", "value"}


@pytest.mark.parametrize(("family", "network"), CASES)
def test_no_pair_is_wrong(family, network):
    ours, theirs = by_spot(hugging_face(family)[2]), by_spot(other(family, network)[1])

    for pair in matched(family, network).pairs:
        whole, parts = sides(pair, ours, theirs)
        if pair.layout.kind == "copies":
            assert all(same_values(whole, part) for part in parts), pair
        elif len(parts) > 1:
            assert np.isclose(whole.sumsq, sum(part.sumsq for part in parts), rtol=1e-3, atol=1e-12), pair
            assert np.isclose(whole.absmax, max(part.absmax for part in parts), rtol=1e-3), pair
        else:
            assert same_values(whole, parts[0]), pair


@pytest.mark.parametrize(("family", "network"), CASES)
def test_98_percent_of_what_both_observe_is_paired(family, network):
    """The bound is counted without names: a value observed m times in one run and n times in the other: min(m, n)."""
    ours, theirs = hugging_face(family)[2], other(family, network)[1]

    matching = matched(family, network)

    n_possible = sum(min(m, n) for m, n in observed_in_both(activations(ours), activations(theirs)))
    spots = by_spot(ours)
    found = [
        pair
        for pair in matching.pairs
        if pair.baseline[0].phase in ("forward", "backward")
        and spots[pair.baseline[0]].dtype == "float32"
        and pair.layout.kind not in ("concatenated", "interleaved", "padded")
        and spots[pair.baseline[0]].shape
    ]
    print(f"{family} {network}: {len(found)} of {n_possible} activation spots")
    assert n_possible > 60
    assert len(found) >= 0.98 * n_possible


@pytest.mark.parametrize(("family", "network"), CASES)
def test_every_site_is_paired_that_the_other_network_has(family, network):
    """Of all modules that were called, in both networks."""
    sides = sites_called(hugging_face(family)[2]), sites_called(other(family, network)[1])

    pairs = matched(family, network).pairs

    paired = [
        {spot.site for pair in pairs for spot in pair.baseline if spot.phase in ACTIVATIONS},
        {spot.site for pair in pairs for spot in pair.candidate if spot.phase in ACTIVATIONS},
    ]
    unpaired = {site for i, sites in enumerate(sides) for site in sites - paired[i]}
    n = sum(map(len, sides))
    print(f"{family} {network}: {n - len(unpaired)} of {n} sites")
    assert {re.sub(r"[0-9]+", "N", site) for site in unpaired} == WITHOUT_COUNTERPART.get(
        network.partition("-")[0], set()
    )
    assert network.startswith("megatron") or n - len(unpaired) >= 0.98 * n


@pytest.mark.parametrize(("family", "network"), CASES)
def test_layouts_turn_the_weights_of_one_side_into_those_of_the_other(family, network):
    weights, state = hugging_face(family)[1], other(family, network)[0]

    n_compared = 0
    for pair in matched(family, network).pairs:
        if pair.baseline[0].phase == "param":
            parts = [weights[spot.site] for spot in pair.baseline]
            (whole,) = (state[spot.site] for spot in pair.candidate)
            assert torch.equal(
                laid_out(parts, pair.layout), whole[: pair.layout.sizes[0]] if pair.layout.kind == "padded" else whole
            )
            n_compared += len(parts)
    assert n_compared == len(weights)


@pytest.mark.parametrize(("family", "network"), CASES)
def test_the_other_way_round_is_the_mirror_image(family, network):
    mirrored = match(other(family, network)[1], hugging_face(family)[2])

    there = {(pair.baseline, pair.candidate, pair.layout, pair.by) for pair in matched(family, network).pairs}
    back = {(pair.candidate, pair.baseline, pair.layout, pair.by) for pair in mirrored.pairs}
    assert there == back


@pytest.mark.parametrize(("family", "network"), CASES)
def test_a_drafted_map_gives_the_same_pairs(family, network):
    matching = matched(family, network)

    again = match(hugging_face(family)[2], other(family, network)[1], parse_map(draft_map(matching)))

    assert {pair.by for pair in again.pairs} == {"manual"}
    assert {(p.baseline, p.candidate, p.layout) for p in again.pairs} == {
        (p.baseline, p.candidate, p.layout) for p in matching.pairs
    }


@pytest.mark.parametrize(
    "pair_of", [("megatron", "mindformers"), ("torchtitan", "megatron"), ("mindformers", "torchtitan")]
)
def test_any_two_namings_map(pair_of):
    ours, theirs = (other("Llama", network)[1] for network in pair_of)

    matching = match(ours, theirs)

    assert left_over(matching.unmatched_baseline, "param") == left_over(matching.unmatched_candidate, "param") == []


@pytest.mark.parametrize(
    ("ours", "theirs", "qkv", "gate_up"),
    [
        ("megatron", "mindformers", "identity", "interleaved"),
        ("mindformers", "megatron", "identity", "concatenated"),
        ("megatron", "mindformers-concatenated", "concatenated", "identity"),
        ("mindformers", "mindformers", "identity", "identity"),
    ],
)
def test_fused_on_both_sides_in_another_order_is_seen_from_the_weights(ours, theirs, qkv, gate_up):
    matching = match(other("Llama", ours)[1], other("Llama", theirs)[1])

    parameters = [pair for pair in matching.pairs if pair.baseline[0].phase == "param"]
    kinds = {(pair.baseline[0].site.split(".")[-2], pair.layout.kind) for pair in parameters}
    assert {kind for name, kind in kinds if name in ("linear_qkv", "w_qkv")} == {qkv}
    assert {kind for name, kind in kinds if name in ("linear_fc1", "w_gate_hidden")} == {gate_up}


@pytest.mark.parametrize("seed", range(5))
def test_a_fifth_of_the_fused_networks_modules_renamed_makes_no_pair_wrong(seed):
    ours, theirs = hugging_face("Llama")[2], refactored(other("Llama", "megatron")[1], random.Random(seed))

    matching = match(ours, theirs)

    known, changed = by_spot(ours), by_spot(theirs)
    for pair in matching.pairs:
        whole, parts = sides(pair, known, changed)
        of_parts = parts[0].sumsq if pair.layout.kind == "copies" else sum(part.sumsq for part in parts)
        assert np.isclose(whole.sumsq, of_parts, rtol=1e-3, atol=1e-12), pair
    assert len(matching.pairs) > 0.6 * len(matched("Llama", "megatron").pairs)


def refactored(cards: list[SiteCard], numbers: random.Random) -> list[SiteCard]:
    """Give a fifth of the modules, and with them all below, another name."""
    modules = sorted({card.spot.site for card in cards if card.spot.phase == "forward" and "." in card.spot.site})
    new = {site: f"renamed{i}" for i, site in enumerate(numbers.sample(modules, len(modules) // 5))}

    def renamed(site: str) -> str:
        parts = site.split(".")
        heads = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return ".".join(new.get(head, part) for head, part in zip(heads, parts, strict=True))

    return [replace(card, spot=replace(card.spot, site=renamed(card.spot.site))) for card in cards]


def by_spot(cards):
    return {card.spot: card for card in cards}


def sides(pair: Pair, ours, theirs):
    """The one spot, and the spot or spots of the other side."""
    a, b = [ours[spot] for spot in pair.baseline], [theirs[spot] for spot in pair.candidate]
    return (a[0], b) if len(a) == 1 else (b[0], a)


def same_values(a: SiteCard, b: SiteCard) -> bool:
    if a.spot.phase == "data":
        return a.digest == b.digest
    alike = np.isclose(a.sumsq, b.sumsq, rtol=1e-3, atol=1e-12) and np.isclose(a.absmax, b.absmax, rtol=1e-3, atol=1e-9)
    if a.sketch and b.sketch and a.shape == b.shape and a.sumsq > 1e-9:
        return bool(alike) and math.dist(a.sketch, b.sketch) < 1e-2 * math.hypot(*a.sketch)
    return bool(alike)


def sites_called(cards):
    return {card.spot.site for card in cards if card.spot.phase in ACTIVATIONS}


def activations(cards):
    return [c for c in cards if c.spot.phase in ("forward", "backward") and c.dtype == "float32" and c.shape]


def observed_in_both(ours, theirs):
    """How often each value is observed on each side: values that no layout changes tell one from another."""
    seen: list[tuple[SiteCard, list[int]]] = []
    for side, cards in enumerate((ours, theirs)):
        for card in cards:
            for known, counts in seen:
                if alike(known, card):
                    counts[side] += 1
                    break
            else:
                seen.append((card, [1 - side, side]))
    return [counts for _, counts in seen]


def alike(a: SiteCard, b: SiteCard) -> bool:
    return (
        a.spot.phase == b.spot.phase
        and layout_of(a, b)
        is not None  # cached keys (batch, head, sequence, size) are in no layout that can be compared
        and abs(a.sumsq - b.sumsq) <= 1e-4 * a.sumsq
        and abs(a.absmax - b.absmax) <= 1e-4 * a.absmax
    )


def laid_out(parts: list[torch.Tensor], layout: Layout) -> torch.Tensor:
    if layout.kind in ("identity", "padded"):
        return parts[0]
    groups = layout.groups if layout.kind == "interleaved" else 1
    assert layout.kind in ("interleaved", "concatenated")
    assert layout.dim == 0
    assert groups
    cut = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(cut, dim=1).flatten(0, 1)
