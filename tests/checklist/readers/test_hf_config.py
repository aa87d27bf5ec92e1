"""config.json of transformers, against what the installed configuration classes make of the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from hypocenter.checklist.checklist import Configuration
from hypocenter.checklist.frameworks.hf_config import models
from hypocenter.checklist.reading import read
from hypocenter.checklist.tables import table

SAMPLES = Path(__file__).resolve().parents[1] / "samples" / "transformers"
MODELS = models()


def values(found: Configuration) -> dict[str, object]:
    return {item: setting.value for item, setting in found.settings.items()}


def of_values(folder: Path, content: dict[str, Any]) -> Configuration:
    path = folder / "config.json"
    path.write_text(json.dumps(content, indent=2))
    return read([path])


def truth(config: Any) -> dict[str, Any]:
    """What a real configuration object says, by transformers' own common names."""
    rope = getattr(config, "rope_parameters", None) or {}
    names = {
        "model.num_layers": "num_hidden_layers", "model.hidden_size": "hidden_size",
        "model.num_attention_heads": "num_attention_heads", "model.vocab_size": "vocab_size",
        "model.tie_word_embeddings": "tie_word_embeddings",
    }  # fmt: skip
    found = {item: getattr(config, name) for item, name in names.items()}
    if rope.get("rope_theta") is not None and "full_attention" not in rope:
        found["model.rope_theta"] = rope["rope_theta"]
        found["model.rotary_fraction"] = rope.get("partial_rotary_factor") or 1.0
    groups = getattr(config, "num_key_value_heads", None)
    if groups is not None:
        found["model.num_key_value_heads"] = groups
    return found


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_configuration_saved_by_transformers_is_read_as_it_is(kind: str, tmp_path: Path) -> None:
    config = CONFIG_MAPPING[kind]()
    config.save_pretrained(tmp_path)

    found = read([tmp_path / "config.json"])

    expected = truth(config)
    assert {item: values(found).get(item, "-") for item in expected} == expected
    assert found.kinds == ("hf-config",)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_the_defaults_are_those_of_the_installed_class(kind: str, tmp_path: Path) -> None:
    config = CONFIG_MAPPING[kind]()

    found = of_values(tmp_path, {"model_type": kind, "architectures": ["X"]})

    expected = truth(config)
    assert {item: values(found).get(item, "-") for item in expected} == expected
    for key, value in MODELS[kind]["defaults"].items():
        # since transformers 5 the first two stand in rope_parameters; a window that is not used reads as None
        if key not in ("rope_theta", "partial_rotary_factor", "sliding_window"):
            assert getattr(config, key) == value, key


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "gpt2", "phi", "starcoder2", "gpt_neox"])
def test_what_follows_from_a_few_values_is_what_the_class_makes_of_them(kind: str, tmp_path: Path) -> None:
    given = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 3}
    spelled = getattr(CONFIG_MAPPING[kind], "attribute_map", {})
    given = {spelled.get(key, key): value for key, value in given.items()}
    config = CONFIG_MAPPING[kind](**given)

    found = of_values(tmp_path, {"model_type": kind, **given})

    expected = truth(config)
    assert {item: values(found).get(item, "-") for item in expected} == expected
    assert values(found)["model.head_dim"] == 64


def test_llama_3_1() -> None:
    found = read([SAMPLES / "llama3_1_8b.json"])

    expected = {
        "model.architecture": "llama", "model.num_layers": 32, "model.num_key_value_heads": 8, "model.head_dim": 128,
        "model.norm_type": "rmsnorm", "model.norm_eps": 1e-5, "model.activation": "swiglu", "model.rope_theta": 5e5,
        "model.rope_scaling": "llama3:8", "model.position_embedding": "rope", "model.qkv_bias": False,
        "model.mlp_bias": False, "precision.params_dtype": "bfloat16", "data.eos_token_id": (128001, 128008, 128009),
        "weights.init_std": 0.02, "other.versions.transformers": "4.43.0.dev0", "model.sliding_window": None,
    }  # fmt: skip
    assert {item: values(found).get(item, "-") for item in expected} == expected
    assert found.settings["model.num_layers"].where == "llama3_1_8b.json:15"
    assert found.settings["model.norm_type"].assumed == "transformers 5.23"
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("content", "item", "value"),
    [
        ({"model_type": "gpt2"}, "model.activation", "gelu_tanh"),
        ({"model_type": "gpt2"}, "model.intermediate_size", 3072),
        ({"model_type": "gpt2", "n_inner": 100}, "model.intermediate_size", 100),
        ({"model_type": "gemma2"}, "model.activation", "geglu_tanh"),
        ({"model_type": "gemma2"}, "model.norm_weight_plus_one", True),
        ({"model_type": "gemma2"}, "model.softmax_scale", 0.0625),
        ({"model_type": "gemma2"}, "model.logit_softcapping", 30.0),
        ({"model_type": "mistral", "sliding_window": None, "vocab_size": 8}, "model.sliding_window", None),
        ({"model_type": "mistral", "vocab_size": 8}, "model.sliding_window", 4096),
        ({"model_type": "qwen2", "vocab_size": 8}, "model.sliding_window", None),
        ({"model_type": "qwen2", "vocab_size": 8}, "model.qkv_bias", True),
        ({"model_type": "qwen3"}, "model.qk_norm", True),
        ({"model_type": "mixtral"}, "moe.num_experts", 8),
        ({"model_type": "mixtral"}, "moe.expert_intermediate_size", 14336),
        ({"model_type": "deepseek_v3"}, "moe.shared_expert_size", 2048),
        ({"model_type": "deepseek_v3"}, "moe.router_score", "sigmoid"),
        ({"model_type": "gptj"}, "model.rotary_fraction", 0.25),
        ({"model_type": "gptj"}, "model.rotary_interleaved", True),
        ({"model_type": "falcon"}, "model.num_key_value_heads", 1),
        ({"model_type": "falcon", "alibi": True}, "model.position_embedding", "alibi"),
        ({"model_type": "t5", "feed_forward_proj": "gated-gelu"}, "model.activation", "geglu_tanh"),
        ({"model_type": "t5"}, "model.head_dim", 64),
        ({"model_type": "bert"}, "model.norm_position", "post"),
        ({"model_type": "bert"}, "model.norm_eps", 1e-12),
        ({"model_type": "gpt_neox", "use_parallel_residual": False}, "model.norm_position", "pre"),
        ({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}, "model.rope_scaling", "linear:2"),
        ({"model_type": "llama", "rope_parameters": {"rope_theta": 7.0}}, "model.rope_theta", 7.0),
        ({"model_type": "llama", "attn_implementation": "eager"}, "fused.attention", False),
        ({"model_type": "llama", "attention_bias": True}, "model.attention_output_bias", True),
    ],
)  # fmt: skip
def test_spellings_and_facts_of_models(content: dict[str, Any], item: str, value: object, tmp_path: Path) -> None:
    found = of_values(tmp_path, {"architectures": ["X"], **content})

    assert values(found).get(item, "-") == value


def test_of_several_parts_the_text_model_is_read(tmp_path: Path) -> None:
    content = {
        "model_type": "llava", "architectures": ["X"], "image_token_index": 32000,
        "text_config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        "vision_config": {"hidden_size": 32},
    }  # fmt: skip

    found = of_values(tmp_path, content)

    assert values(found)["model.architecture"] == "llama"
    assert values(found)["model.hidden_size"] == 64
    assert {setting.spelled for setting in found.unknown} == {
        "image_token_index: 32000",
        "vision_config.hidden_size: 32",
    }


def test_a_model_type_nobody_knows_has_no_defaults(tmp_path: Path) -> None:
    found = of_values(
        tmp_path, {"model_type": "own", "hidden_size": 64, "num_attention_heads": 4, "rms_norm_eps": 1e-6}
    )

    assert values(found)["model.head_dim"] == 16
    assert "model.rope_theta" not in found.settings
    assert any("'own' are not known here" in note for note in found.notes)


def test_facts_are_of_items_and_defaults_are_of_known_keys() -> None:
    known = table("hf_config")

    for kind, model in MODELS.items():
        assert all(known.knows(key) for key in model["defaults"]), kind
        assert isinstance(model["gated"], bool)
