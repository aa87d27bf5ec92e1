"""The machine of the Transformers guide on several GPUs: torch for CUDA 10.2 beside two toolkits, the wrong one first.

`python tests/doctor/guide_machine.py` prints what the doctor says of it, as docs/doctor.md shows it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from made_machine import Made

from hypocenter.doctor.answering import answer
from hypocenter.doctor.catalogue import examine_machine
from hypocenter.doctor.settings import examine_settings
from hypocenter.report import doctor_screen


def guide_machine(root: Path) -> Made:
    """Two cards of compute capability 7.5, CUDA 10.2 and 11.0, gcc 9 with gcc 7 beside it, DeepSpeed."""
    made = Made(root=root, cuda="10.2", arch_list=("sm_37", "sm_50", "sm_60", "sm_70", "sm_75"), driver="440.33")
    made.capabilities = ((7, 5), (7, 5))
    made.card = "Quadro RTX 6000"
    made.use_deepspeed(async_io={"built": False, "compatible": False, "variable": "DS_BUILD_AIO", "why": "no libaio"})
    made.gcc("9.4.0")
    made.gcc("7.5.0", "gcc-7")
    made.program("ninja", "1.10.2\n")
    made.toolkit("10.2", patch="89")
    made.put_first(made.toolkit("11.0"))
    made.environ["LD_LIBRARY_PATH"] = f"/usr/local/cuda-11.0/lib:{made.environ['LD_LIBRARY_PATH']}"
    made.environ |= {"TORCH_CUDA_ARCH_LIST": "8.6", "NCCL_ALGO": "Ring"}
    return made


def screen(root: Path) -> str:
    """What the doctor says of it."""
    machine = guide_machine(root).machine()
    return doctor_screen.render(answer([*examine_machine(machine), *examine_settings(machine)]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(screen(Path(folder)), end="")
