"""Stands for `python -m verl.trainer.main_ppo KEY=VALUE ...`: a worker in an actor's process makes three updates.

Of Hydra's overrides those are understood that name the data, and those of `ray_kwargs.ray_init.runtime_env.env_vars`,
which verl hands to `ray.init` (verl 0.9, trainer/main_ppo.py).
"""

import re
import sys

import ray

WORKER = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
GIVEN = re.compile(r"\+ray_kwargs\.ray_init\.runtime_env\.env_vars\.(\w+)='([^']*)'")

passed = {}
for word in sys.argv[1:]:
    if found := GIVEN.fullmatch(word):
        passed[found[1]] = found[2]
    else:
        assert word.startswith("data."), word
ray.init(runtime_env={"env_vars": passed} if passed else None)
ray.run_as_actor(WORKER)
