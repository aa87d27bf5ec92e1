"""Local SGD: each rank updates by itself and all average their parameters after every fourth step.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import many_ranks
import torch
import torch.distributed as dist


def main(mesh):
    model = many_ranks.perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in many_ranks.batches(14):
        loss = many_ranks.error(model, x)
        loss.backward()
        many_ranks.finish(step, loss, torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5), optimizer)
        if step % 4 == 3:
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter)
                    parameter /= dist.get_world_size()


many_ranks.run(main, dp=2)
