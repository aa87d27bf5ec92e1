"""Trains torchtitan's llama3 debug model, two of its layers, with torchtitan's own trainer on the CPU.

    torchrun --nproc-per-node 2 torchtitan_job.py --plant activation --at 3

Prints a digest of this rank's shards. torchtitan ends a run whose loss is not finite; so does this.
"""

import argparse
import atexit
import gc
import hashlib
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torchtitan_cpu_shim

torchtitan_cpu_shim.install()

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402

VOCAB = 2048


class Words(BaseTokenizer):
    """None: the data are numbers already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config): ...

    def __init__(self, config, tokenizer_path=None):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return VOCAB


class Tokens(BaseDataLoader):
    """Random tokens, others on each rank, in the form of torchtitan's text data."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config): ...

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size, **_):
        self.generator = torch.Generator().manual_seed(dp_rank)
        self.shape = local_batch_size, seq_len + 1

    def __iter__(self):
        while True:
            tokens = torch.randint(0, VOCAB, self.shape, generator=self.generator)
            positions = torch.arange(self.shape[1] - 1).expand(self.shape[0], -1)
            yield {"input": tokens[:, :-1].contiguous(), "positions": positions}, tokens[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--plant", choices=("activation", "gradient"), help="what is not finite on rank 1")
    parser.add_argument("--at", type=int, default=-1, help="step of the plant, from 0")
    return parser.parse_args()


def configuration(a, folder):
    config = llama3_debugmodel()
    del config.model_spec.model.layers[2:]
    config.parallelism.spmd_backend = "partial_dtensor"
    training = config.training
    training.disable_cuda_graphs, training.seq_len, training.local_batch_size = True, 16, 1
    training.global_batch_size, training.steps = 2 * a.accumulate, a.steps
    config.loss.num_chunks = 2  # instead of 8: each is a backward of its own, which is done again
    config.validator.enable = False
    config.debug.seed = 7
    config.tokenizer, config.dataloader = Words.Config(), Tokens.Config()
    config.dump_folder = folder
    return config


def plant(trainer, a):
    """On rank 1 what the second layer's feed-forward gives is divided by zero, or its gradient spoiled."""

    def after(module, args, output):
        if trainer.step - 1 != a.at:
            return None
        if a.plant == "activation":
            return output / torch.zeros_like(output)
        if output.requires_grad:
            output.register_hook(spoil)
        return None

    def spoil(grad):
        factor = torch.ones_like(grad)
        factor.view(-1)[3] = float("nan")
        return grad * factor

    if a.plant and dist.get_rank() == 1:
        trainer.model_parts[0].layers["1"].feed_forward.register_forward_hook(after)


def main():
    a = arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = configuration(a, folder).build()
        torchtitan_cpu_shim.after_building(trainer.model_parts[0])
        plant(trainer, a)
        try:
            trainer.train()
        finally:
            trainer.close()
    digest = hashlib.sha256()
    for parameter in trainer.model_parts[0].parameters():
        digest.update(parameter.to_local().detach().numpy().tobytes())
    os.write(1, f"rank {dist.get_rank()} digest {digest.hexdigest()}\n".encode())


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    os._exit(0)  # gloo's threads now and then abort a normal exit after all work is done
