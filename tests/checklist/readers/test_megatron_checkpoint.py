"""The arguments in a checkpoint of Megatron-LM, of which nothing is executed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import torch

from hypocenter.checklist.reading import read
from hypocenter.errors import HypocenterError


def arguments() -> argparse.Namespace:
    return argparse.Namespace(
        num_layers=24, hidden_size=1024, num_attention_heads=16, bf16=True, fp16=False, params_dtype=torch.bfloat16,
        adam_beta2=0.95, swiglu=True, train_iters=None, data_path=["corpus"], a_new_one=3, lr=1e-4, save="here",
    )  # fmt: skip


def test_the_arguments_of_a_rank(tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000100" / "mp_rank_00"
    folder.mkdir(parents=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    torch.save({"args": arguments(), "iteration": 100, "model": {}}, folder / "model_optim_rng.pt")

    for path in (tmp_path, tmp_path / "iter_0000100", folder / "model_optim_rng.pt"):
        found = read([path])

        assert found.kinds == ("megatron-checkpoint",)
        assert found.settings["model.num_layers"].value == 24
        assert found.settings["optimizer.beta2"].value == 0.95
        assert found.settings["precision.params_dtype"].value == "bfloat16"
        assert found.settings["model.activation"].value == "swiglu"
        assert [setting.spelled for setting in found.unknown] == ["a_new_one=3"]
        assert any("iteration 100" in note for note in found.notes)


class Hostile:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.proof}",)


def test_a_pickle_that_asks_for_a_program_is_refused(tmp_path: Path) -> None:
    proof, path = tmp_path / "executed", tmp_path / "model_optim_rng.pt"
    torch.save({"args": Hostile(proof)}, path)

    with pytest.raises(HypocenterError, match="system"):
        read([path])

    assert not proof.exists()


def test_a_checkpoint_without_arguments_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model_optim_rng.pt"
    torch.save({"model": {"weight": torch.zeros(2)}}, path)

    with pytest.raises(HypocenterError, match="no arguments"):
        read([path])


def test_training_arguments_as_a_pickle_say_how_to_write_them(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    path = tmp_path / "training_args.bin"
    torch.save(TrainingArguments(output_dir=str(tmp_path), use_cpu=True), path)

    with pytest.raises(HypocenterError, match="not read") as caught:
        read([path])

    assert "to_json_string" in caught.value.fix
