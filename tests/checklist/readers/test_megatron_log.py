"""The arguments in a log of Megatron-LM."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.checklist.checklist import ConfigurationError
from hypocenter.checklist.reading import read

LOG = Path(__file__).resolve().parents[1] / "samples" / "megatron" / "gpt.log"


def test_all_that_a_log_says() -> None:
    found = read([LOG])

    expected = {
        "model.num_layers": 32, "model.hidden_size": 4096, "model.intermediate_size": 11008, "model.norm_eps": 1e-5,
        "model.num_key_value_heads": 32, "model.vocab_size": 32000, "model.padded_vocab_size": 32256,
        "optimizer.beta2": 0.95, "optimizer.warmup_steps": 2000, "optimizer.total_steps": 100000,
        "parallel.tensor": 4, "parallel.pipeline": 2, "parallel.data": 2, "parallel.world_size": 16,
        "parallel.sequence_parallel": True, "batch.accumulation_steps": 8, "precision.compute_dtype": "bfloat16",
        "precision.params_dtype": "bfloat16", "precision.grad_reduce_dtype": "float32", "model.activation": "swiglu",
        "data.dataset": (1.0, "corpus_text_document"), "moe.num_experts": 1, "optimizer.decay_steps": 100000,
    }  # fmt: skip
    assert {item: found.settings[item].value for item in expected} == expected
    assert found.settings["optimizer.beta2"].where == "gpt.log:6"
    assert found.settings["optimizer.beta2"].assumed is None
    assert found.notes == ()
    assert [setting.spelled for setting in found.unknown] == ["fp8_recipe delayed"]


def test_a_name_so_long_that_no_dots_are_left() -> None:
    found = read([LOG])

    spelled = [setting.spelled for setting in found.set_aside]
    assert "inference_dynamic_batching_buffer_guaranteed_fraction 0.2" in spelled


def test_of_two_starts_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG.read_text() + LOG.read_text().replace("... 0.0003", "... 0.0001"))

    found = read([path])

    assert found.settings["optimizer.lr"].value == 0.0001
    assert any("the last of 2 blocks" in note for note in found.notes)


def test_a_log_that_is_cut_says_so(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG.read_text().partition("[default0]:  bf16")[0])

    found = read([path])

    assert found.settings["optimizer.beta2"].value == 0.95
    assert any("has no end" in note for note in found.notes)


def test_a_block_without_arguments_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("-------------- arguments --------------\n----------- end of arguments ----------\n")

    with pytest.raises(ConfigurationError, match="no arguments") as caught:
        read([path])

    assert caught.value.where.endswith("train.log:1")
