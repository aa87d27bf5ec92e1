"""DeepSpeed's own code fills the buckets of ZeRO on a device with streams; what is read of them is printed.

What it does around (engine, groups, collectives) is left out. Prints the races, and whether norms were right.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "devices"))

import deepspeed  # noqa: F401 (must be there: the adapter waits for it)
import npu_backend
import torch
from deepspeed.runtime.zero import stage3, stage_1_and_2

from hypocenter.tap.before_reduction import deepspeed as adapter

npu = npu_backend.begin()
N = 3
ACCELERATOR = types.SimpleNamespace(
    current_stream=npu.current_stream, stream=npu.stream, Event=npu.Event, resolves_data_dependency=lambda: False,
    is_synchronized_device=lambda: False, handles_memory_backpressure=lambda: True, range_push=lambda *_: None,
    range_pop=lambda *_: None,
)  # fmt: skip


def zero3():
    kind = stage3.DeepSpeedZeroOptimizer_Stage3
    kind._DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads = lambda self, dtype: None
    made = kind.__new__(kind)
    bucket = types.SimpleNamespace(buffer=torch.zeros(64, device="npu"), params=[], elements=0, process_group=None)
    vars(made).update(
        ipg_buckets={torch.float32: bucket}, contiguous_gradients=True, reduce_bucket_size=64, zenflow=False,
        reduce_and_partition_stream=npu.Stream(), get_param_comm_dtype=lambda param: torch.float32,
        _get_param_partition_group=lambda param: None, _apply_autoep_folding_tp_correction=lambda param: None,
    )  # fmt: skip
    return made, lambda: made._DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads(torch.float32), [None]


def zero2():
    """Backward runs on two streams, as autograd does where forward did."""
    kind = stage_1_and_2.DeepSpeedZeroOptimizer
    kind.reduce_ipg_grads = lambda self, comm_dtype=None: None
    made = kind.__new__(kind)
    bucket = types.SimpleNamespace(
        buffer=[torch.zeros(64, device="npu")], params=[], elements=0, index=0, copy_streams=set(), grads=[],
        reuse_events={}, has_moe_params=False,
    )  # fmt: skip
    vars(made).update(
        ipg_buckets={torch.float32: bucket}, contiguous_gradients=True, reduce_bucket_size=64, zenflow=False,
        overlap_comm=True, use_grad_accum_attribute=False, get_param_comm_dtype=lambda param: torch.float32,
        get_param_id=id, params_already_reduced=dict.fromkeys(map(id, PARAMETERS), False),
        _record_gradient_stream=lambda *_: None, _offload_gradient_safety_enabled=False,
        _maybe_reduce_autoep_folding_tp_gradient=lambda *_: None, _record_bucket_producer=lambda *_: None,
        param_to_group=lambda *_: 0, grads_in_ipg_bucket=[], params_in_ipg_bucket=[],
    )  # fmt: skip
    return made, lambda: made.reduce_ipg_grads(), [None, npu.Stream()]


PARAMETERS = [torch.nn.Parameter(torch.zeros(8, device="npu")) for _ in range(N)]


def main() -> None:
    stage3.get_accelerator = stage_1_and_2.get_accelerator = lambda: ACCELERATOR
    sys.modules["deepspeed.accelerator"].get_accelerator = lambda: ACCELERATOR
    made, reduce, streams = {"3": zero3, "2": zero2}[sys.argv[1]]()
    for parameter in PARAMETERS:
        parameter.ds_numel, parameter.param_idx_in_group = parameter.numel(), 0
    told = []
    undo = adapter.attach(lambda locals_: told.extend(torch._foreach_norm([each.gradient for each in locals_])), print)
    for number, parameter in enumerate(PARAMETERS):
        stream = streams[number % len(streams)]
        with npu.stream(stream) if stream is not None else npu.stream(npu.current_stream()):
            parameter.grad = torch.ones(8, device="npu") * (number + 1)
            made.reduce_independent_p_g_buckets_and_remove_grads(parameter, *([number] if sys.argv[1] == "2" else []))
    npu_backend.races()  # DeepSpeed's own
    reduce()
    races = npu_backend.races()
    undo()
    npu.synchronize()
    norms = torch.stack(told).tolist()
    print(races)
    print([round(norm / 8**0.5, 5) for norm in norms])


if __name__ == "__main__":
    main()
