"""A small network's weights under two namings, the second with its linears fused."""

from pathlib import Path

import torch
from safetensors.torch import save_file

torch.manual_seed(0)
weights = {f"model.layers.{i}.mlp.{name}_proj.weight": torch.randn(8, 4) for i in range(2) for name in ("gate", "up")}
weights |= {f"model.layers.{i}.mlp.down_proj.weight": torch.randn(4, 8) for i in range(2)}
fused = {
    f"decoder.layers.{i}.mlp.linear_fc1.weight": torch.cat(
        [weights[f"model.layers.{i}.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    )
    for i in range(2)
}
fused |= {
    f"decoder.layers.{i}.mlp.linear_fc2.weight": weights[f"model.layers.{i}.mlp.down_proj.weight"] for i in range(2)
}
for name, tensors in (("hf", weights), ("other", fused)):
    Path(name).mkdir()
    save_file(tensors, f"{name}/model.safetensors")
