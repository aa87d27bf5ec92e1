"""What the reading commands are given in their tests, beside recordings: logs, configurations, recordings of bits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "determinism" / "programs"
sys.path.insert(0, str(TESTS / "compare"))

from repeats.traces import Program, stored  # noqa: E402

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6, "vocab_size": 32000, "hidden_act": "silu",
    "max_position_embeddings": 4096, "eos_token_id": 2,
}  # fmt: skip
TRAINING = {
    "learning_rate": 1e-5, "adam_beta2": 0.95, "weight_decay": 0.1, "bf16": True, "max_steps": 100,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "output_dir": "out",
    "lr_scheduler_type": "cosine",
}  # fmt: skip


def side(folder: Path, *, model: dict[str, Any] | None = None, training: dict[str, Any] | None = None) -> str:
    """config.json and training_args.json in a folder, as one word for the command line."""
    folder.mkdir(exist_ok=True)
    for name, values in (("config.json", {**MODEL, **(model or {})}), ("args.json", {**TRAINING, **(training or {})})):
        (folder / name).write_text(json.dumps(values, indent=2), encoding="utf-8")
    return f"{folder / 'config.json'},{folder / 'args.json'}"


def log(path: Path, gap: float = 0.0, seed: int = 0, n: int = 400) -> Path:
    """A MindFormers log whose loss is `gap` too high from step 240 on."""
    t = np.arange(n)
    batches = np.random.default_rng(99).normal(size=n) * 0.05
    own = np.random.default_rng(seed).normal(size=n) * 0.005
    losses = 2.5 + 8 * np.exp(-t / 20) + batches + own + gap * (t >= 240)
    lines = [
        f"{{ Epoch:[  1/  1], step:[{i + 1:5d}/{n:5d}], loss: {loss:5.3f}, per_step_time: 12ms, lr: 1e-05, "
        "overflow cond: False, loss_scale: 1.0, global_norm: [1.5]"
        for i, loss in enumerate(losses)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def recorded(folder: Path, digest: int, *, trains: bool = True) -> Path:
    """A program that adds something up, whose result has this digest."""
    p = Program()
    a = p.op("aten.index_add.default", out=digest)
    if trains:
        p.result("loss", a, digest)
    return stored(folder, p)
