"""What a job of NPUs is told to type is not NVIDIA's."""

from __future__ import annotations

from hypocenter.doctor.over_ranks.judgement import BY_BACKEND


def test_each_backend_has_commands_of_its_own_makers() -> None:
    told = {backend: (tools.look, tools.pace, tools.errors, tools.log) for backend, tools in BY_BACKEND.items()}

    assert all("npu-smi" not in line and "ASCEND" not in line for line in told["nccl"])
    assert all("nvidia" not in line and "NCCL" not in line.replace("HCCL", "") for line in told["hccl"])
