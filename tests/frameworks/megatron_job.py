"""Trains a small fp16 GPT with real Megatron-Core on the CPU: healthy steps, one overflow, healthy steps again.

    torchrun --nproc-per-node 2 megatron_job.py --tp 2 --blow 3
    torchrun --nproc-per-node 2 megatron_job.py --distopt --blow 3
    torchrun --nproc-per-node 2 megatron_job.py --pp 2 --precision bf16 --plant gradient --at 3

Prints a digest of the parameters' bits.
"""

import argparse
import atexit
import gc
import hashlib
import os

import megatron_ready  # noqa: F401 - first: it makes Megatron run on the CPU
import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

VOCAB, SEQ, MICRO_BATCH = 64, 8, 2
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def say(line):
    os.write(1, f"{line}\n".encode())  # in one piece: the ranks share a pipe


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--vpp", type=int, help="chunks of the model on each pipeline rank")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--plant", choices=("gradient", "activation"), help="what gets a NaN on one rank")
    parser.add_argument("--at", type=int, default=-1, help="step of the plant")
    parser.add_argument("--on", type=int, default=1, help="rank of the plant")
    parser.add_argument("--precision", choices=DTYPES, default="fp16")
    parser.add_argument("--distopt", action="store_true")
    parser.add_argument("--static", type=float, default=0.0, help="constant loss scale")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--blow", type=int, default=-1, help="step whose loss is multiplied by --by")
    parser.add_argument("--by", type=float, default=1e6)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--sp", action="store_true", help="sequence parallel")
    parser.add_argument("--recompute", choices=("full", "selective"))
    parser.add_argument("--experts", type=int, help="a mixture of so many, with its auxiliary loss")
    parser.add_argument("--tied", action="store_true", help="one weight for embedding and output")
    parser.add_argument("--fused", action="store_true", help="gradient_accumulation_fusion")
    parser.add_argument("--overlap", action="store_true", help="of grad reduce, and with --distopt of param gather")
    parser.add_argument("--bare", action="store_true", help="leave grad_scale_func out: the loss is never scaled")
    return parser.parse_args()


def recomputed(a):
    return {"recompute_method": "uniform", "recompute_num_layers": 1} if a.recompute == "full" else {}


def mixture(a):
    if not a.experts:
        return {}
    return {
        "num_moe_experts": a.experts, "moe_router_topk": 2, "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 1e-2, "moe_token_dispatcher_type": "allgather", "add_bias_linear": False,
    }  # fmt: skip


def configuration(a):
    dtype = DTYPES[a.precision]
    return TransformerConfig(
        num_layers=a.layers, hidden_size=32, num_attention_heads=4, ffn_hidden_size=64, use_cpu_initialization=True,
        tensor_model_parallel_size=a.tp, pipeline_model_parallel_size=a.pp,
        virtual_pipeline_model_parallel_size=a.vpp, overlap_p2p_comm=bool(a.vpp), batch_p2p_comm=not a.vpp,
        params_dtype=dtype, pipeline_dtype=dtype, fp16=a.precision == "fp16",
        bf16=a.precision == "bf16", attention_dropout=a.dropout, hidden_dropout=a.dropout, bias_activation_fusion=False,
        masked_softmax_fusion=False, bias_dropout_fusion=False, gradient_accumulation_fusion=a.fused,
        sequence_parallel=a.sp, recompute_granularity=a.recompute, **recomputed(a), **mixture(a),
        finalize_model_grads_func=finalize_model_grads, deallocate_pipeline_outputs=True,  # as Megatron-LM always does
    )  # fmt: skip


def build_chunk(a, cfg, chunk):
    model = GPTModel(
        config=cfg, transformer_layer_spec=get_gpt_layer_local_spec(a.experts), vocab_size=VOCAB,
        max_sequence_length=SEQ, position_embedding_type="rope", share_embeddings_and_output_weights=a.tied,
        pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
        post_process=mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk), vp_stage=chunk,
    )  # fmt: skip
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=a.distopt, overlap_grad_reduce=a.overlap,
        overlap_param_gather=a.overlap and a.distopt,
    )  # fmt: skip
    model = DistributedDataParallel(config=cfg, ddp_config=ddp, module=Float16Module(cfg, model))
    model.broadcast_params()
    return model


def last_layer(chunks):
    return chunks[-1].module.module.decoder.layers[-1]


def plant(chunks, now, a):
    """On one rank, at the planted step: one NaN in one weight's gradient, or a division by zero after an MLP."""
    layer = last_layer(chunks)

    def spoil(grad):
        if now[0] != a.at:
            return None
        factor = torch.ones_like(grad)
        factor.view(-1)[3] = float("nan")
        return grad * factor

    def divide(module, args, output):
        if now[0] != a.at:
            return None
        return output[0] / torch.zeros_like(output[0]), output[1]

    if a.plant and dist.get_rank() == a.on:
        if a.plant == "gradient":
            layer.mlp.linear_fc2.weight.register_hook(spoil)
        else:
            layer.mlp.register_forward_hook(divide)


def build_optimizer(a, model):
    config = OptimizerConfig(
        optimizer="adam", lr=1e-2, min_lr=1e-3, clip_grad=1.0, params_dtype=DTYPES[a.precision],
        fp16=a.precision == "fp16", bf16=a.precision == "bf16", use_distributed_optimizer=a.distopt,
        overlap_param_gather=a.overlap and a.distopt,
        loss_scale=a.static or None, initial_loss_scale=2**10, min_loss_scale=1.0, loss_scale_window=100, hysteresis=1,
    )  # fmt: skip
    return get_megatron_optimizer(config, model)


def synchronise_like_megatron_lm(cfg, chunks, a):
    def of_all(name):
        functions = [getattr(model, name) for model in chunks]
        return functions if len(functions) > 1 else functions[0]

    cfg.no_sync_func, cfg.grad_sync_func = of_all("no_sync"), of_all("start_grad_sync")
    if a.distopt:
        cfg.param_sync_func = of_all("start_param_sync")


def batch(step, micro_batch):
    seed = 1000 * step + 10 * micro_batch + mpu.get_data_parallel_rank()
    ids = torch.randint(0, VOCAB, (MICRO_BATCH, SEQ + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def forward_of(step, a):
    """What Megatron's schedule calls for each micro-batch of a step."""

    def loss(out):
        value = out.float().mean() * (a.by if step == a.blow else 1.0)
        return value, {"lm loss": value.detach().clone()}

    def forward_step(iterator, model):
        x, y = batch(step, next(iterator))
        positions = torch.arange(SEQ).unsqueeze(0).expand(MICRO_BATCH, SEQ)
        mask = torch.triu(torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool), 1)
        return model(x, positions, mask, labels=y), loss

    return forward_step


def main():
    a = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=a.tp, pipeline_model_parallel_size=a.pp, virtual_pipeline_model_parallel_size=a.vpp
    )
    tensor_parallel.model_parallel_cuda_manual_seed(123)
    torch.manual_seed(0)
    cfg = configuration(a)
    chunks = [build_chunk(a, cfg, chunk if a.vpp else None) for chunk in range(a.vpp or 1)]
    optimizer = build_optimizer(a, chunks)
    if a.overlap:
        synchronise_like_megatron_lm(cfg, chunks, a)
    now = [0]
    plant(chunks, now, a)
    if not a.bare:
        cfg.grad_scale_func = optimizer.scale_loss  # without it fp16 divides by a scale that was never applied
    run = get_forward_backward_func()
    n_microbatches = 4 if a.vpp else 2
    for step in range(a.steps):
        now[0] = step
        for model in chunks:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        batches = [iter(range(n_microbatches)) for _ in chunks]
        run(
            forward_step_func=forward_of(step, a), data_iterator=batches if a.vpp else batches[0],
            model=chunks if a.vpp else chunks[0], num_microbatches=n_microbatches,
            seq_length=SEQ, micro_batch_size=MICRO_BATCH, decoder_seq_length=SEQ, forward_only=False,
        )  # fmt: skip
        optimizer.step()
    digest = hashlib.sha256()
    for model in chunks:
        for parameter in model.parameters():
            digest.update(parameter.detach().float().numpy().tobytes())
    say(f"rank {dist.get_rank()} digest {digest.hexdigest()}")


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    os._exit(0)  # gloo's threads now and then abort a normal exit after all work is done
