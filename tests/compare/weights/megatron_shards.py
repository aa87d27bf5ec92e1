"""Real Megatron-Core models on the CPU, each rank's shards of known whole tensors saved as Megatron-LM does.

    python tests/ranks/forks.py --nproc-per-node 4 megatron_shards.py OUT --tp 2 --pp 2

How a parameter is cut is read off Megatron's own attributes (partition_dim, partition_stride). Writes
OUT/iter_0000005/mp_rank_*/model_optim_rng.pt and OUT/whole_*.pt: the whole tensors, by global names.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "frameworks"))
import megatron_ready  # noqa: F401 - first: it makes Megatron run on the CPU
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig


def whole_of(name, part, tp):
    shape = list(part.shape)
    if getattr(part, "tensor_model_parallel", False):
        shape[part.partition_dim] *= tp
    generator = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
    return torch.randn(shape, generator=generator)


def shard_of(whole, part, tp, rank):
    if not getattr(part, "tensor_model_parallel", False):
        return whole
    chunks = whole.chunk(tp * part.partition_stride, dim=part.partition_dim)
    return torch.cat(chunks[rank::tp], dim=part.partition_dim)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2)
    a = parser.parse_args()
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel(a.tp, a.pp)
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(
        num_layers=4, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48,
        use_cpu_initialization=True, tensor_model_parallel_size=a.tp, pipeline_model_parallel_size=a.pp,
        pipeline_dtype=torch.float32, gated_linear_unit=True, activation_func=F.silu, add_bias_linear=False,
        add_qkv_bias=True, bias_activation_fusion=False, gradient_accumulation_fusion=False,
        normalization="LayerNorm",
    )  # fmt: skip
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=8,
        position_embedding_type="rope", share_embeddings_and_output_weights=False,
        pre_process=mpu.is_pipeline_first_stage(), post_process=mpu.is_pipeline_last_stage(),
    )  # fmt: skip
    tp, pp = mpu.get_tensor_model_parallel_rank(), mpu.get_pipeline_model_parallel_rank()
    whole = {}
    with torch.no_grad():
        for name, part in model.named_parameters():
            parts = name.split(".")
            if "layers" in parts:
                at = parts.index("layers") + 1
                parts[at] = str(int(parts[at]) + pp * 4 // a.pp)
            full = ".".join(parts)
            whole[full] = whole_of(full, part, a.tp)
            part.copy_(shard_of(whole[full], part, a.tp, tp))
    args = argparse.Namespace(
        num_attention_heads=4, num_query_groups=2, kv_channels=8, hidden_size=32, attention_backend=AttnBackend.auto,
        params_dtype=torch.float32, padded_vocab_size=64,
    )  # fmt: skip
    place = f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if a.pp > 1 else "")
    folder = a.out / "iter_0000005" / place
    folder.mkdir(parents=True)
    state = {
        "args": args, "checkpoint_version": 3.0, "iteration": 5, "model": model.state_dict_for_save_checkpoint(),
        "rng_state": [{"torch_rng_state": torch.get_rng_state()}], "optimizer": {"step": torch.ones(1)},
    }  # fmt: skip
    torch.save(state, folder / "model_optim_rng.pt")
    if tp == 0:
        torch.save(whole, a.out / f"whole_{pp}.pt")
    if dist.get_rank() == 0:
        (a.out / "latest_checkpointed_iteration.txt").write_text("5")
    dist.barrier()


main()
