"""A GPT of Megatron-Core in float32, trained for two steps on tensor-parallel ranks: megatron_job.py [OPTION=VALUE ...]

Options: gated (MLP), eps (of the norm before the second layer's MLP).
"""

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "frameworks"))

import megatron_ready  # noqa: F401 - first: it makes Megatron run on the CPU
import torch
import torch.distributed as dist
from megatron.core import (
    parallel_state,
    tensor_parallel,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

VOCABULARY, LENGTH, BATCH, STEPS = 96, 8, 4, 2
OPTIONS = dict(arg.partition("=")[::2] for arg in sys.argv[1:])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tp = dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, ffn_hidden_size=88, use_cpu_initialization=True,
        tensor_model_parallel_size=tp, gated_linear_unit="gated" in OPTIONS,
        attention_dropout=0.0, hidden_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False,
        bias_dropout_fusion=False, gradient_accumulation_fusion=False, params_dtype=torch.float32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=VOCABULARY,
        max_sequence_length=LENGTH, position_embedding_type="rope", share_embeddings_and_output_weights=False,
    )  # fmt: skip
    if "eps" in OPTIONS:
        model.decoder.layers[1].pre_mlp_layernorm.eps = float(OPTIONS["eps"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    positions = torch.arange(LENGTH).unsqueeze(0).expand(BATCH, LENGTH)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    for step in range(STEPS):
        ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
        model(ids[:, :-1].contiguous(), positions, mask, labels=ids[:, 1:].contiguous()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
