"""Training on `npu`, a device that is not CUDA: one more device, like any other.

The device is real to PyTorch (PrivateUse1, as torch_npu's) and computes on the CPU; see npu_backend.cpp. Nothing here
has run on an Ascend NPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import npu_backend
import pytest
import torch
import warm

VIEWS = {"_unsafe_view", "as_strided", "detach", "permute", "slice.Tensor", "split.Tensor", "unsqueeze", "view"}
VIEWS |= {"view.dtype", "masked_fill.Scalar", "new_zeros"}  # of others: masked_fill_, zeros
OP_PLUGIN = {
    "__rshift__.Scalar", "__rshift__.Tensor", "_foreach_norm.Scalar", "_local_scalar_dense", "_to_copy", "add.Tensor",
    "add_.Tensor", "amax", "amin", "aminmax", "arange", "bincount", "bitwise_and.Scalar", "bitwise_and.Tensor",
    "bitwise_xor.Scalar", "bitwise_xor.Tensor", "cat", "clamp", "clone", "copy_", "div.Tensor", "eq.Scalar",
    "gt.Scalar", "index.Tensor", "isnan", "linalg_vector_norm", "lt.Scalar", "maximum", "min", "mm", "mul.Tensor",
    "nan_to_num", "neg", "rsub.Scalar", "stack", "sum", "zeros",
}  # fmt: skip
"""Operators that op-plugin, which holds torch_npu's kernels, lists in August 2026."""

HERE = Path(__file__).parent
PROGRAM = HERE / "train_on_npu.py"


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if npu_backend.library() is None:
        pytest.skip("no C++ compiler, or torch without its headers")


def python(*arguments, ok=(0,)):
    source = str(HERE.parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = warm.run([sys.executable, *map(str, arguments)], env=environment, timeout=120)
    assert done.returncode in ok, done.stderr
    return done


def recorded(out, *arguments, options=("--level", "modules")):
    return python("-m", "hypocenter", "run", "--out", out, *options, PROGRAM, *arguments)


def findings(out):
    text = python("-m", "hypocenter", "check", out, "--json", ok=(0, 1)).stdout
    return json.loads(text)["findings"]


def evidence(out):
    (path,) = Path(out).glob("rank-00000/bundles/*/evidence.json")
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def alone():
    return python(PROGRAM).stdout


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory):
    out = tmp_path_factory.mktemp("overflowed") / "run"
    recorded(out, "--overflow-at", 2)
    return out


def test_an_overflow_is_found_explained_and_cured_on_the_device(overflowed):
    (finding,) = findings(overflowed)
    found = evidence(overflowed)
    line = PROGRAM.read_text().splitlines()[found["origin"]["source"]["line"] - 1]
    assert (finding["code"], finding["cause"], finding["confidence"]) == ("HC102", "format-overflow", "proven")
    assert (found["origin"]["site"], found["origin"]["op"]) == ("blocks.1", "aten.mul.Tensor")
    assert line.strip() == "wide = wide * gain"
    assert (found["reproduced"], found["again"]["equal_bits"], found["cpu"]["finite"]) == (True, True, False)
    cure = found["cure"]
    assert (cure["status"], cure["targets"], cure["verified"]) == ("cured", ["blocks.1"], True)
    assert cure["patch_verified"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--level", "sentinel"), ("--level", "tensors", "--calibrate"), ("--level", "modules", "--sketch", "--op-bits")],
    ids=lambda options: options[1],
)
def test_training_with_hypocenter_on_is_bit_identical(tmp_path, alone, options):
    watched = recorded(tmp_path / "run", options=options)

    assert watched.stdout == alone
    assert "internal error" not in watched.stderr
    assert findings(tmp_path / "run") == []


def test_the_recording_names_the_device_and_follows_its_random_stream(overflowed):
    rank = json.loads((overflowed / "rank-00000" / "rank.json").read_text())
    shown = python("-m", "hypocenter", "show", overflowed, "--site", "*").stdout
    assert (rank["device"], rank["device_name"]) == ("npu:0", "Ascend910B2")
    assert "rng.npu" in shown
    settings = json.loads((overflowed / "rank-00000" / "facts.json").read_text())["settings"]
    assert (settings["device"], settings["autocast_device"]) == ("npu", "npu")
    assert (settings["npu_hf32_matmul"], settings["npu_hf32_conv"], settings["npu_inf_nan"]) == (False, True, True)


def test_the_first_step_of_torch_npus_scaler_is_seen_also_when_it_overflows(tmp_path):
    recorded(tmp_path / "run", "--scaler", "torch_npu", "--overflow-at", 0)

    (finding,) = findings(tmp_path / "run")
    found = evidence(tmp_path / "run")
    assert (finding["code"], finding["step"], finding["cause"]) == ("HC102", 0, "format-overflow")
    assert (found["loss_scale"], found["origin"]["site"]) == (65536.0, "blocks.1")


def test_a_static_scaler_makes_the_update_and_what_it_breaks_is_no_second_finding(tmp_path):
    recorded(tmp_path / "run", "--scaler", "static", "--overflow-at", 2)

    (finding,) = findings(tmp_path / "run")
    assert (finding["code"], finding["step"]) == ("HC102", 2)
    assert "skipped" not in " ".join(finding["then"])


def test_a_device_that_saturates_skips_without_an_infinite_gradient(tmp_path):
    recorded(tmp_path / "run", "--scaler", "torch_npu", "--saturate-at", 2)

    steps = python("-m", "hypocenter", "check", tmp_path / "run", "--notes").stdout
    assert "the update was skipped at loss scale 65,536" in steps
    assert "step 2" in steps


def test_the_devices_generator_is_captured_and_restored():
    program = """
import npu_backend; npu_backend.begin()
import torch
from hypocenter.tap.state import capture_rng, restore_rng
x = torch.ones(64, device="npu")
before = capture_rng()
first = torch.nn.functional.dropout(x)
second = torch.nn.functional.dropout(x)
restore_rng(before)
again = torch.nn.functional.dropout(x)
print(before.device_type, torch.equal(first.cpu(), again.cpu()), torch.equal(first.cpu(), second.cpu()))
"""
    assert python("-c", f"import sys; sys.path.insert(0, {str(HERE)!r}){program}").stdout.split() == [
        "npu",
        "True",
        "False",
    ]


def test_autocast_of_a_device_that_appears_later_is_seen():
    program = """
import torch
from hypocenter.tap.state import capture_ambient, entered
from hypocenter.replay.remedies.wide_forward import autocast_off, is_autocast_on
with torch.autocast("cpu"):
    capture_ambient(), is_autocast_on()
import npu_backend; npu_backend.begin()
with torch.autocast("npu", dtype=torch.float16):
    ambient = capture_ambient()
    print(is_autocast_on(), autocast_off(torch.float32, is_autocast_on, (), {}))
with entered(ambient):
    print(torch.is_autocast_enabled("npu"), torch.get_autocast_dtype("npu"))
"""
    done = python("-c", f"import sys; sys.path.insert(0, {str(HERE)!r}){program}")
    assert done.stdout.splitlines() == ["True False", "True torch.float16"]


def test_what_the_device_casts_to_float32_is_judged_in_float64_all_the_same():
    program = """
import npu_backend; npu_backend.begin()
import torch
from hypocenter.summary.reducers.torch import summarize
from hypocenter.summary.reducers.torch_float64 import has_float64
x = torch.full((4,), 1e25, device="npu")
print(x.double().dtype, has_float64("npu"), summarize(x).sumsq)
"""
    done = python("-c", f"import sys; sys.path.insert(0, {str(HERE)!r}){program}")
    assert done.stdout.split() == ["torch.float32", "False", str(4 * float(torch.tensor(1e25)) ** 2)]


def test_an_overflow_of_float32_is_finite_in_float64(tmp_path):
    recorded(tmp_path / "run", "--float32", "--overflow-at", 2)

    (finding,) = findings(tmp_path / "run")
    found = evidence(tmp_path / "run")
    assert (finding["cause"], finding["confidence"]) == ("exploding-activation", "proven")
    assert found["float64"]["finite"]
    assert found["float64"]["absmax"] > 3.5e38


@pytest.mark.night
def test_doctor_examines_the_device_and_its_switches():
    program = """
import npu_backend; npu_backend.begin()
import json, torch
torch.set_num_threads(1)
from hypocenter.examine import arithmetic, device, torch_facts
own = device.own_device(0)
out = {}
torch.npu.Event = type("Event", (), {"record": lambda self: None, "query": lambda self: True})
arithmetic.examine(own, lambda text: None, out, 0.2)
wrong = [test["name"] for test in out["tests"] if test["n_wrong"] or test["n_unequal"]]
print(json.dumps([own.kind, own.backend, own.name, device.memory(own), len(out["tests"]), wrong, out["skipped"]]))
print(json.dumps(torch_facts.switches()["npu.conv.allow_hf32"]))
"""
    done = python("-c", f"import sys; sys.path.insert(0, {str(HERE)!r}){program}")
    kind, backend, name, trouble, n_tests, wrong, skipped = json.loads(done.stdout.splitlines()[0])
    assert (kind, backend, name, trouble) == ("npu", "hccl", "Ascend910B2", {})
    assert (wrong, skipped) == ([], [])
    assert n_tests > 5
    assert done.stdout.splitlines()[1] == "true"


@pytest.mark.night
def test_a_sketch_takes_few_kernels_and_bounded_memory_whatever_the_tensor():
    program = """
import npu_backend; npu = npu_backend.begin()
import torch
from hypocenter.summary.reducers.torch_sketch import sketch_of
from hypocenter.summary.reducers.torch_small_sketch import small_sketches
torch.set_num_threads(1)
n = (1 << 24) + 1000  # two blocks, and a third that is not full
flat = torch.empty(n, dtype=torch.bfloat16, device="npu").fill_(1.0)
square = flat[:1 << 24].view(4, 1024, 64, 64)
for precision in ("highest", "medium"):
    torch.set_float32_matmul_precision(precision)
    for tensor in (flat, flat[1:], square.view(4096, 4096), square.transpose(1, 2), flat.view(torch.int16)):
        for sketch in (sketch_of, lambda t: small_sketches([t])[0]):
            before = npu.memory_allocated()
            npu.reset_peak_memory_stats()
            with npu_backend.Syncs() as counted:
                made = sketch(tensor)
            print(precision, counted.n, counted.n_kernels, (npu.max_memory_allocated() - before) >> 20)
"""
    done = python("-c", f"import sys; sys.path.insert(0, {str(HERE)!r}){program}")
    told = [line.split() for line in done.stdout.splitlines()]

    assert len(told) == 20
    for precision, n_syncs, n_kernels, mib in told:
        assert int(n_syncs) == 0
        assert int(n_kernels) <= 3 * (55 if precision == "highest" else 75)  # a block
        assert int(mib) <= (120 if precision == "highest" else 180)  # of a tensor of 32 MiB, and of one of 32 GiB


def test_what_is_launched_on_a_device_has_an_npu_kernel():
    program = """
import npu_backend; npu_backend.begin()
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from hypocenter.summary.reducers.torch import TorchReducer
from hypocenter.tap.gradients import norms
torch.set_num_threads(1)
made = [(torch.randn(n) * 10).to(t).to("npu") for n in (100, 70000)
        for t in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)]
seen = set()
class Log(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen.add(str(func))
        return func(*args, **(kwargs or {}))
with Log():
    for values in made:
        for is_sketched in (False, True):
            reducer = TorchReducer(sketch=is_sketched)
            reducer.add(values)
            reducer.drain()
    torch.stack([norm.float() for norm in norms([v for v in made if v.is_floating_point()])]).tolist()
print(*seen)
"""
    done = python("-c", f"import sys; sys.path.insert(0, {str(HERE)!r}){program}")
    launched = {name.removeprefix("aten.").removesuffix(".default") for name in done.stdout.split()}
    assert launched - VIEWS - OP_PLUGIN == set(), "look it up in op-plugin's op_plugin_functions.yaml, then add it"
    assert "bincount" in launched
