"""Whatever stands in the environment and whatever programs say: every check answers, and a screen can show it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from made_machine import Made, codes

from hypocenter.doctor.answering import answer
from hypocenter.doctor.hardware import listed_in, runs_on
from hypocenter.doctor.settings import compare, examine_settings, snapshot
from hypocenter.json_answer import plain
from hypocenter.report import doctor_screen

NAMES = (
    "PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "CC", "CXX", "NVCC_CCBIN",
    "ASCEND_HOME_PATH", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "LOCAL_WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES", "HOME",
)  # fmt: skip
WORDS = st.sampled_from(
    ["", ":", "/", "/usr/bin", "/usr/local/cuda-12.4/bin", "/usr/local/cuda-12.4/lib64", "/usr/local/cuda-11.8",
     "relative/bin", "8.6", "9.0a+PTX", "Hopper", "0", "1", "-1", "gcc-11", "ccache gcc", "..", "/../..",
     "/usr/local/cuda/../x"]
)  # fmt: skip
SAYS = st.one_of(
    st.text(max_size=20), st.sampled_from(["release 12.4, V12.4.1", "gcc (GCC) 13.2.0", "clang version 14"])
)
CONTROLS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n"}
VALUES = st.one_of(
    st.lists(WORDS, max_size=4).map(":".join), st.text(st.characters(exclude_characters="\0"), max_size=12)
)
CAPABILITY = st.tuples(st.integers(3, 13), st.integers(0, 9))


@settings(max_examples=30, deadline=None)
@given(
    environ=st.dictionaries(st.sampled_from(NAMES), VALUES),
    says=SAYS,
    capabilities=st.lists(CAPABILITY, max_size=3),
    builds=st.sampled_from([None, True, False]),
)
def test_every_check_answers(environ: dict[str, str], says: str, capabilities: list, builds: bool | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Made(root=Path(folder), capabilities=capabilities, builds=builds)
        made.toolkit("12.4")
        made.toolkit("11.8")
        made.use_deepspeed()
        for name in ("nvcc", "gcc", "ninja", "gcc-11"):
            made.program(name, says)
        made.environ |= environ

        found = made.all()

        whole = answer([*found, *examine_settings(made.machine())])
    assert {check.code for check in found} == codes()
    assert all(check.what for check in whole.checks)
    assert CONTROLS.isdisjoint(doctor_screen.render(whole))
    assert plain(whole)["schema"] == "hypocenter.doctor/1"


@given(CAPABILITY)
def test_a_device_runs_what_was_built_for_it(capability: tuple[int, int]) -> None:
    name = f"{capability[0]}.{capability[1]}"

    assert runs_on(capability, listed_in(name)) == "code"
    assert runs_on(capability, listed_in(f"{name}a")) == "code"
    assert runs_on((capability[0] + 1, 0), listed_in(name)) == ""
    assert runs_on((capability[0] + 1, 0), listed_in(f"{name}+PTX")) == "ptx"


@given(
    st.dictionaries(
        st.integers(0, 5), st.dictionaries(st.sampled_from(["NCCL_ALGO", "OMP_NUM_THREADS", "HOME"]), VALUES)
    )
)
def test_ranks_are_equal_only_if_they_are(environs: dict[int, dict[str, str]]) -> None:
    taken = {rank: snapshot(environ) for rank, environ in environs.items()}

    found = list(compare(taken))

    differ = len({tuple(sorted(one["variables"].items())) for one in taken.values()}) > 1
    assert any(check.status != "ok" for check in found) == differ
