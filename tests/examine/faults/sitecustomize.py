"""Faults for tests, on PYTHONPATH of one run: DOCTOR_FAULT=KIND@RANK,KIND@RANK, each in the process of that rank only.

Python imports a module of this name at its start. The product has no switch for any of this: what is wrapped here are
functions of torch, in the child that examines, or the start of the rank's process itself.
"""

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
import time

PLANTED = [each.split("@") for each in os.environ.get("DOCTOR_FAULT", "").split(",") if each]
KIND = next((kind for kind, rank in PLANTED if rank == os.environ.get("RANK")), "")
WORDS = getattr(sys, "orig_argv", sys.argv)
IS_CHILD = "hypocenter.examine" in WORDS


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then(module)` when `name` has been imported."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.then(module)

        spec.loader.exec_module = exec_module
        return spec


class Spoiled:
    """A work after whose wait the result is changed."""

    def __init__(self, work, change):
        self.work, self.change = work, change

    def wait(self, *args):
        self.work.wait(*args)
        self.change()
        return True


def wrapped(dist, name, before=lambda args: None, after=None):
    original = getattr(dist, name)

    def faulty(*args, **kwargs):
        before(args)
        work = original(*args, **kwargs)
        return work if after is None else Spoiled(work, lambda: after(args))

    setattr(dist, name, faulty)


def add_one(args):
    args[0].view(-1)[0] += 1


def plant(module):
    import torch
    import torch.distributed as dist

    if KIND == "wrong-result":  # this rank gets a wrong sum
        wrapped(dist, "all_reduce", after=add_one)
    elif KIND == "wrong-contribution":  # every rank gets a wrong sum, because of this one
        wrapped(dist, "all_reduce", before=add_one)
    elif KIND == "left-out":
        wrapped(dist, "all_reduce", before=lambda args: args[0].zero_())
    elif KIND == "wrong-part":
        for name in ("all_gather_into_tensor", "all_gather_single"):  # before torch 2.13, and since
            if hasattr(dist, name):
                wrapped(dist, name, before=lambda args: add_one(args[1:]))
    elif KIND == "slow":
        wrapped(dist, "all_reduce", before=lambda args: time.sleep(0.03))
    elif KIND == "busy":  # slow by being pre-empted now and then: not a fault of the rank
        calls = iter(range(1_000_000))
        wrapped(dist, "all_reduce", before=lambda args: time.sleep(0.03) if next(calls) % 3 == 0 else None)
    elif KIND == "stuck":
        wrapped(dist, "all_reduce", before=lambda args: time.sleep(100_000))
    elif KIND == "hang-in-c":  # holds the interpreter: no thread of this process can do anything
        wrapped(dist, "all_reduce", before=lambda args: ctypes.PyDLL(None).sleep(100_000))
    elif KIND == "crash":
        wrapped(dist, "all_reduce", before=lambda args: ctypes.string_at(0))
    elif KIND == "bad-link":  # what rank 1 sends to rank 2 arrives changed
        original = dist.batch_isend_irecv

        def batch(ops):
            for op in ops:
                if op.op is dist.isend and op.peer == 2:
                    op.tensor = op.tensor.clone()
                    op.tensor[5] += 1
            return original(ops)

        dist.batch_isend_irecv = batch
    elif KIND in ("wrong-matmul", "unsteady-matmul", "slow-matmul"):
        mm, calls = torch.mm, iter(range(1_000_000))

        def faulty_mm(a, b):
            result = mm(a, b)
            if KIND == "slow-matmul":
                time.sleep(0.05)
            elif KIND == "wrong-matmul" or next(calls) % 7 == 6:
                result[3, 5] *= 1 + 2.0**-5
            return result

        torch.mm = faulty_mm


if KIND == "never" and not IS_CHILD:
    time.sleep(100_000)
if KIND and IS_CHILD:
    sys.meta_path.insert(0, AfterImport("hypocenter.examine.rank", plant))
