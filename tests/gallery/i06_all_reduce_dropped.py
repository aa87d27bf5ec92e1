"""A communication library gives rank 1 its own gradients back instead of the sum. Nothing fails, nothing is strange.

The library is played by a wrapper below torch.distributed. To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv


def play_a_faulty_library():
    reduce = dist.ProcessGroup.allreduce

    def allreduce(self, tensors, *options):
        own = tensors[0].clone()
        work = reduce(self, tensors, *options)
        work.wait()
        if dist.get_rank() == 1 and not HEALTHY:
            tensors[0].copy_(own)  # <- fault
        return work

    dist.ProcessGroup.allreduce = allreduce


def main():
    play_a_faulty_library()
    model = many_ranks.perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in many_ranks.batches(6):
        loss = many_ranks.error(model, x)
        loss.backward()
        many_ranks.average_gradients(model.parameters())
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main)
