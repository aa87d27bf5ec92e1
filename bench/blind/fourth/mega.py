"""Megatron-core on gloo and the CPU."""

import contextlib
import os

import torch

for key, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29655").items():
    os.environ.setdefault(key, value)
torch.distributed.init_process_group("gloo")
torch.cuda.current_device = lambda: torch.device("cpu")  # what Megatron asks for when it allocates


def on_cpu(make):
    """`make`, a factory of tensors, that makes them on the CPU whatever device is named."""
    return lambda *a, **k: make(*a, **(k | {"device": "cpu"} if str(k.get("device", "")).startswith("cuda") else k))


torch.zeros, torch.tensor = on_cpu(torch.zeros), on_cpu(torch.tensor)
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402


def start(tensor=1, seed=1, **more):
    """A GPT of two layers, and its configuration, on `tensor` tensor-parallel ranks."""
    torch.manual_seed(seed)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor)
    tensor_parallel.random.initialize_rng_tracker()
    tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tensor,
        pipeline_dtype=torch.float32,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        **more,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm),
        vocab_size=64,
        max_sequence_length=32,
        share_embeddings_and_output_weights=True,
    )
    return model, config
