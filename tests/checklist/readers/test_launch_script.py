"""Launch scripts: published examples re-created, and what is not known of them said to be so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.checklist.checklist import Configuration, ConfigurationError
from hypocenter.checklist.reading import read

SAMPLES = Path(__file__).resolve().parents[1] / "samples"


def values(configuration: Configuration) -> dict[str, object]:
    return {item: setting.value for item, setting in configuration.settings.items()}


def of_script(folder: Path, text: str) -> Configuration:
    path = folder / "train.sh"
    path.write_text(text)
    return read([path])


def test_arrays_of_flags() -> None:
    found = read([SAMPLES / "megatron" / "gpt3_175b.sh"])

    assert found.kinds == ("megatron-shell", "environment", "launcher")
    expected = {
        "model.num_layers": 96, "model.hidden_size": 12288, "model.num_attention_heads": 96, "model.head_dim": 128,
        "model.num_key_value_heads": 96, "model.intermediate_size": 49152, "model.seq_length": 2048,
        "model.activation": "gelu_tanh", "model.norm_type": "layernorm", "model.position_embedding": "learned",
        "optimizer.lr": 6e-5, "optimizer.min_lr": 6e-6, "optimizer.beta2": 0.95, "optimizer.eps": 1e-8,
        "optimizer.type": "adam", "optimizer.warmup_fraction": 0.001, "optimizer.warmup_steps": 430,
        "optimizer.decay_steps": 430000, "optimizer.total_steps": 500000, "optimizer.lr_schedule": "cosine",
        "batch.global_batch_size": 1536, "batch.rampup": (16, 16, 5859375), "parallel.world_size": 1024,
        "parallel.data": 8, "batch.accumulation_steps": 192, "weights.init_std": 0.006,
        "precision.compute_dtype": "float16", "precision.loss_scale": "dynamic",
        "precision.grad_reduce_dtype": "float16",
    }  # fmt: skip
    assert {item: values(found).get(item) for item in expected} == expected
    assert found.unknown == ()
    assert found.settings["model.num_layers"].where == "gpt3_175b.sh:21"
    assert found.settings["model.num_layers"].spelled == "--num-layers 96"
    assert found.settings["optimizer.eps"].assumed == "Megatron-LM 0.12"
    assert found.settings["model.intermediate_size"].derived == "4 * hidden_size"


def test_strings_of_flags_with_holes_to_fill_in() -> None:
    found = read([SAMPLES / "megatron" / "gpt_345m.sh"])

    assert values(found)["model.num_layers"] == 24
    assert found.settings["model.num_layers"].where == "gpt_345m.sh:11"
    assert values(found)["model.padded_vocab_size"] == 50304
    assert values(found)["parallel.world_size"] == 8
    assert found.settings["data.dataset"].value is None
    assert "<Specify path and file prefix>" in (found.settings["data.dataset"].unresolved or "")


def test_a_command_within_quotes_for_srun_keeps_its_lines() -> None:
    found = read([SAMPLES / "megatron" / "gpt3_slurm.sh"])

    assert values(found)["optimizer.total_steps"] == 146484375 // 1536
    assert values(found)["optimizer.warmup_steps"] == 183105 // 1536
    assert found.settings["optimizer.lr"].where == "gpt3_slurm.sh:27"
    assert values(found)["parallel.recompute"] == "full"
    assert found.settings["data.dataset"].unresolved is not None
    assert any("$@ comes from outside of the script" in note for note in found.notes)


def test_branches_defaults_and_quoted_pairs() -> None:
    found = read([SAMPLES / "megatron" / "llama3_8b.sh"])

    expected = {
        "model.seq_length": 8192, "model.num_key_value_heads": 8, "model.activation": "swiglu",
        "model.norm_type": "rmsnorm", "model.rope_theta": 500000, "model.rope_scaling": "llama3:8",
        "model.tie_word_embeddings": False, "model.qkv_bias": False, "model.mlp_bias": False,
        "model.vocab_size": 128256, "parallel.tensor": 2, "parallel.world_size": 16, "parallel.data": 8,
        "parallel.sequence_parallel": True, "parallel.zero_stage": 1, "batch.accumulation_steps": 16,
        "optimizer.total_steps": 10000, "optimizer.warmup_steps": 100, "precision.grad_reduce_dtype": "bfloat16",
        "batch.loss_per_token": True, "data.dataset": "mock data", "fused.attention": True,
    }  # fmt: skip
    assert {item: values(found).get(item) for item in expected} == expected
    assert [setting.spelled for setting in found.unknown] == ["--decoupled-lr 5.0e-4"]
    assert any("NUM_NODES is not set in the script: '2' is taken" in note for note in found.notes)
    assert any("WANDB_API_KEY" in note and "left out" in note for note in found.notes)
    assert not any("wandb_project" in setting.spelled for setting in found.set_aside)


def test_a_function_that_starts_the_program() -> None:
    found = read([SAMPLES / "megatron" / "mixtral_8x7b.sh"])

    expected = {
        "moe.num_experts": 8, "moe.top_k": 2, "moe.aux_loss_coeff": 0.01, "moe.expert_intermediate_size": 14336,
        "moe.norm_topk_prob": True, "moe.capacity_factor": None, "parallel.expert": 8, "parallel.pipeline": 4,
        "parallel.sequence_parallel": False, "optimizer.warmup_steps": 500, "parallel.world_size": 32,
    }  # fmt: skip
    assert {item: values(found).get(item, "-") for item in expected} == expected
    assert "no tensor parallelism" in (found.settings["parallel.sequence_parallel"].derived or "")
    assert found.settings["data.tokenizer"].unresolved


def test_a_script_of_flags_alone() -> None:
    found = read([SAMPLES / "megatron" / "qwen_flags.sh"])

    assert values(found)["model.qkv_bias"] is True
    assert values(found)["model.attention_output_bias"] is False
    assert values(found)["model.padded_vocab_size"] == 151936
    assert any("no program is started in it" in note for note in found.notes)


def test_flags_of_the_trainer_and_its_launcher() -> None:
    found = read([SAMPLES / "transformers" / "run_clm.sh"])

    assert found.kinds[0] == "trainer-shell"
    assert values(found)["optimizer.lr"] == 5e-5
    assert values(found)["batch.global_batch_size"] == 8 * 2 * 4
    assert values(found)["precision.compute_dtype"] == "bfloat16"


def test_nothing_of_a_script_is_executed(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    text = f"""
    touch {proof}
    LAYERS=$(touch {proof}; echo 4)
    HIDDEN=`touch {proof}; echo 8`
    N=$((x[$(touch {proof})] + 1))
    torchrun pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN --seq-length $N --lr 1e-3
    """

    found = of_script(tmp_path, text)

    assert not proof.exists()
    for item in ("model.num_layers", "model.hidden_size", "model.seq_length"):
        assert found.settings[item].value is None
        assert found.settings[item].unresolved
    assert values(found)["optimizer.lr"] == 1e-3


def test_what_cannot_be_told_takes_no_default_and_no_part_in_sums(tmp_path: Path) -> None:
    text = (
        "torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --vocab-size 50257 --lr-warmup-samples $W --lr $LR"
    )

    found = of_script(tmp_path, text)

    for item in ("parallel.tensor", "optimizer.warmup_steps", "optimizer.lr"):
        assert found.settings[item].value is None
        assert found.settings[item].assumed is None
    assert "model.padded_vocab_size" not in found.settings


def test_the_last_word_of_a_flag_counts(tmp_path: Path) -> None:
    found = of_script(tmp_path, "python pretrain_gpt.py --num-layers 2 \\\n --lr 1e-3 \\\n --num-layers 3\n")

    assert values(found)["model.num_layers"] == 3
    assert "train.sh:3: --num-layers 3 takes the place of --num-layers 2 (train.sh:1)" in found.notes


@pytest.mark.parametrize(
    ("flags", "item", "value"),
    [
        ("--disable-bias-linear", "model.mlp_bias", False),
        ("--bf16", "precision.grad_reduce_dtype", "float32"),
        ("--bf16 --grad-reduce-in-bf16", "precision.grad_reduce_dtype", "bfloat16"),
        ("--bf16 --fp32-residual-connection", "precision.residual_dtype", "float32"),
        ("--fp16 --loss-scale 4096", "precision.loss_scale", 4096),
        ("--no-bias-gelu-fusion", "model.activation", "gelu"),
        ("--squared-relu", "model.activation", "squared_relu"),
        ("--hidden-size 768 --swiglu", "model.intermediate_size", 2048),
        ("--use-rotary-position-embeddings", "model.position_embedding", "rope"),
        ("--no-position-embedding", "model.position_embedding", "none"),
        ("--recompute-activations", "parallel.recompute", "selective"),
        ("--recompute-granularity full --recompute-method uniform", "parallel.recompute", "full"),
        ("--num-layers 16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
         "parallel.virtual_pipeline", 4),
        ("--data-parallel-sharding-strategy optim_grads", "parallel.zero_stage", 2),
        ("--seed 7", "data.seed", 7),
        ("--weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 0.1",
         "optimizer.weight_decay_schedule", "linear:0:0.1"),
        ("--num-experts 4 --moe-router-pre-softmax", "moe.norm_topk_prob", False),
        ("--num-experts 4 --moe-router-load-balancing-type none --moe-aux-loss-coeff 0.1", "moe.aux_loss_coeff", 0.0),
        ("--init-method-xavier-uniform", "weights.init_method", "xavier_uniform"),
        ("--attention-backend unfused", "fused.attention", False),
        ("--no-persist-layer-norm", "fused.norm", False),
        ("--optimizer sgd --sgd-momentum 0.8", "optimizer.momentum", 0.8),
    ],
)  # fmt: skip
def test_flags_that_say_something_together(tmp_path: Path, flags: str, item: str, value: object) -> None:
    found = of_script(tmp_path, f"python pretrain_gpt.py {flags}\n")

    assert values(found)[item] == value


def test_exports_that_change_numbers(tmp_path: Path) -> None:
    text = """
    export HCCL_DETERMINISTIC=true
    export MS_ASCEND_CHECK_OVERFLOW_MODE="INFNAN_MODE"
    export SOMETHING_ELSE=1
    bash msrun_launcher.sh "run_mindformer.py --config finetune.yaml --run_mode train" 8
    """

    found = of_script(tmp_path, text)

    assert found.kinds[0] == "mindformers-shell"
    assert values(found)["other.deterministic"] is True
    assert values(found)["other.overflow_mode"] == "infnan"
    assert [setting.spelled for setting in found.unknown] == ["export SOMETHING_ELSE=1"]
    assert any("finetune.yaml: give it as a further file" in note for note in found.notes)


def test_a_script_without_flags_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        of_script(tmp_path, "#!/bin/bash\nmake all\n")

    assert "no flags of a training program" in caught.value.what
    assert "train.sh" in caught.value.where
    assert caught.value.fix


def test_a_script_that_bash_could_not_read_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        of_script(tmp_path, '#!/bin/bash\nA=1\npython train.py --lr "1e-3\n')

    assert caught.value.where.endswith("train.sh:3")
    assert "double quote" in caught.value.why


def test_a_variable_that_doubles_itself_ends_in_an_error(tmp_path: Path) -> None:
    doubled = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40

    with pytest.raises(ConfigurationError):
        of_script(tmp_path, doubled + "python train.py --lr $A\n")
