"""The functions of torch that we hear of are the objects they were, and a program finds its process as it was."""

from __future__ import annotations

from trained import TRAINED

FUNCTIONS = """
from torch.nn.modules import module as of_modules
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler, swa_utils

for function in (
    torch.autograd.backward, clip_grad_norm_, clip_grad_value_, torch.Tensor.backward, nn.Module.__call__,
    nn.Module.compile, nn.Module.__setstate__, model.forward, optimizer.step, torch.amp.GradScaler.__init__,
    torch.amp.GradScaler.step, torch.amp.GradScaler.unscale_, torch.amp.GradScaler.update, F.cross_entropy,
    lr_scheduler.LRScheduler.step, swa_utils.AveragedModel.update_parameters,
):
    print(function.__module__, function.__qualname__, inspect.signature(function), hasattr(function, "__wrapped__"))
    print(sorted(vars(function)), len(inspect.getsource(function)), function.__code__.co_filename)
print(nn.utils.clip_grad_norm_ is clip_grad_norm_ is nn.utils.clip_grad.clip_grad_norm_)
print([len(each) for each in (
    of_modules._global_forward_hooks, of_modules._global_forward_pre_hooks, of_modules._global_backward_hooks,
    of_modules._global_backward_pre_hooks, optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks,
)])
print(torch._C._len_torch_dispatch_stack())
"""
CLIPPED_BEFORE = """
from torch.nn.utils import clip_grad_norm_

import torch

layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(2):
    layer(torch.ones(1, 2)).sum().backward()
    print(clip_grad_norm_(iter(list(layer.parameters())), 1.0))
    print(clip_grad_norm_(parameters=layer.parameters(), max_norm=1.0))
    print(torch.nn.utils.clip_grad_value_((p for p in layer.parameters()), 0.1), layer.weight.grad)
    torch.autograd.backward(each for each in [layer(torch.ones(1, 2)).sum(), layer(torch.ones(1, 2)).mean()])
    optimizer.step()
"""
PROCESS = """
import logging
import random
import signal
import sys
import threading

print(warnings.filters, [thread.name for thread in threading.enumerate()])
print([str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGUSR1)])
print(logging.root.handlers, logging.root.level, sys.gettrace(), sys.getprofile(), gc.callbacks, gc.get_threshold())
print(sys.argv, sys.path[1:], torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())
print(torch.get_rng_state().sum(), sorted(name for name in globals() if name.startswith("_")))
"""


def test_functions_of_torch_keep_their_identity_signature_and_source(twice):
    without, recorded = twice(TRAINED + FUNCTIONS)

    assert without[0] == 0, without[2]
    assert recorded == without


def test_what_can_be_read_once_is_still_there_for_torch(twice):
    without, recorded = twice(CLIPPED_BEFORE)

    assert without[0] == 0, without[2]
    assert recorded == without


def test_the_process_is_as_it_was(twice):
    without, recorded = twice(TRAINED + PROCESS)

    assert without[0] == 0, without[2]
    assert recorded == without
