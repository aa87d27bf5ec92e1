"""A recording of a real little network, read as a configuration."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.checklist.checklist import Configuration
from hypocenter.checklist.reading import read


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(16, eps=1e-6)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(16, 48), "c_proj": nn.Linear(16, 16, bias=False)})
        self.ln_2 = nn.LayerNorm(16, eps=1e-6)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(16, 40), "gelu": nn.GELU(approximate="tanh"), "c_proj": nn.Linear(40, 16)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn["c_proj"](self.attn["c_attn"](self.ln_1(x))[..., :16])
        return x + self.mlp["c_proj"](self.mlp["gelu"](self.mlp["c_fc"](self.ln_2(x))))


class Little(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(32, 16), "drop": nn.Dropout(0.2), "h": nn.ModuleList([Block(), Block(), Block()]),
            "ln_f": nn.LayerNorm(16, eps=1e-6),
        })  # fmt: skip
        self.lm_head = nn.Linear(16, 32, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.transformer["drop"](self.transformer["wte"](ids))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("recorded") / "run"
    torch.manual_seed(0)
    model = Little()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-7)
    with hypocenter.watch(model, optimizer, out=str(out)):
        for _ in range(2):
            loss = model(torch.randint(0, 32, (2, 4))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return read([out])


def test_what_was_measured_on_the_program(found: Configuration) -> None:
    expected = {
        "model.num_layers": 3, "model.hidden_size": 16, "model.intermediate_size": 40, "model.norm_type": "layernorm",
        "model.norm_eps": 1e-6, "model.padded_vocab_size": 32, "model.qkv_bias": True, "model.fused_qkv": True,
        "model.attention_output_bias": False, "model.mlp_bias": True, "model.head_bias": False,
        "model.activation": "gelu_tanh", "model.hidden_dropout": 0.2, "optimizer.type": "adamw", "optimizer.eps": 1e-7,
        "optimizer.beta2": 0.95, "optimizer.weight_decay": 0.1, "optimizer.decay_bias_and_norm": False,
        "optimizer.lr": 1e-3, "precision.compute_dtype": "float32", "precision.params_dtype": "float32",
        "parallel.world_size": 1, "batch.accumulation_steps": 1, "other.versions.torch": torch.__version__,
    }  # fmt: skip
    values = {item: setting.value for item, setting in found.settings.items()}
    assert {item: values.get(item, "-") for item in expected} == expected
    assert found.kinds == ("recording",)


def test_a_value_says_which_module_it_was_read_off(found: Configuration) -> None:
    assert found.settings["model.norm_eps"].where.startswith("facts.json: ")
    assert "ln" in found.settings["model.norm_eps"].where
