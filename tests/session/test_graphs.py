"""Steps that are captured as a graph of the device, and compiled code that writes its results to the same memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import hypocenter
from hypocenter.record.reader import open_run
from hypocenter.record.schema import READINGS, readings_from

DEVICES = Path(__file__).parents[1] / "devices"
PROGRAM = DEVICES / "train_in_graphs.py"
sys.path[:0] = [str(DEVICES), str(Path(__file__).parents[1] / "processes")]

import npu_backend  # noqa: E402
import warm  # noqa: E402

KINDS = ["whole", "part", "functional"]


@pytest.fixture(scope="module")
def _compiled():
    if npu_backend.library() is None:
        pytest.skip("no C++ compiler, or torch without its headers")


def run(*arguments, ok=(0,)):
    source = str(DEVICES.parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = warm.run([sys.executable, *map(str, arguments)], env=environment, timeout=120)
    assert done.returncode in ok, done.stderr
    return done


def recorded(out, *arguments, level="sentinel"):
    return run("-m", "hypocenter", "run", "--out", out, "--level", level, PROGRAM, *arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("level", ["sentinel", "modules"])
@pytest.mark.parametrize("what", KINDS)
def test_a_capture_is_not_disturbed_and_training_stays_bit_identical(tmp_path, what, level):
    alone, watched = run(PROGRAM, what), recorded(tmp_path / "run", what, level=level)

    assert watched.stdout == alone.stdout
    assert "internal error" not in watched.stderr
    if what != "part":
        assert watched.stderr.count("hypocenter: whole steps are replayed from a graph") == 1


@pytest.mark.usefixtures("_compiled")
def test_what_a_graph_leaves_behind_is_looked_at(tmp_path):
    recorded(tmp_path / "run", "whole", "--nan-at", 1)

    answer = json.loads(run("-m", "hypocenter", "check", tmp_path / "run", "--json", ok=(0, 1)).stdout)
    finding = answer["findings"][0]
    assert finding["step"] == 4  # three before the capture, the second replay
    assert (finding["kind"], "graph" in json.dumps(answer)) == ("nonfinite", True)


@pytest.mark.night
@pytest.mark.usefixtures("_compiled")
def test_the_end_of_the_program_waits_for_no_replay_that_is_never_done(tmp_path):
    said = recorded(tmp_path / "run", "whole", "--stuck").stderr

    assert "the device had not done its work when the program ended" in said
    assert "what the last replays of a graph left is not known" not in said  # nobody has asked for it


@pytest.mark.usefixtures("_compiled")
def test_losses_of_replays_are_recorded_at_their_steps(tmp_path):
    printed = recorded(tmp_path / "run", "whole").stdout.splitlines()

    losses = [float.fromhex(line.split()[1]) for line in printed if line.startswith("loss")]
    rows = readings_from(open_run(tmp_path / "run").table().select(READINGS.names))
    told = {row.step: row.summary.absmax for row in rows if row.phase == "loss"}
    assert told == {step: losses[step] for step in (0, 1, 2, 3, 4, 6, 8)}


def test_no_module_carries_a_hook_that_a_graphed_callable_would_refuse(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(model, optimizer, level="modules", out=tmp_path / "run"):
        for _ in range(2):
            optimizer.zero_grad()
            torch.utils.checkpoint.checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum().backward()
            optimizer.step()
        found = [
            (type(module).__name__, name)
            for module in model.modules()
            for name in ("_backward_hooks", "_forward_hooks", "_forward_pre_hooks", "_backward_pre_hooks")
            if getattr(module, name)
        ]
    assert found == []


def _into_the_same_memory(graph, inputs):
    """A backend whose results are overwritten by its next run, as those of mode="reduce-overhead" are."""
    from functorch.compile import make_boxed_func

    kept = []

    def call(*args):
        made = graph(*args)
        if not kept:
            kept.extend(each.detach().clone() if isinstance(each, torch.Tensor) else each for each in made)
        with torch.no_grad():
            for held, new in zip(kept, made, strict=True):
                if isinstance(held, torch.Tensor):
                    held.data.copy_(new)
        return list(kept)

    return make_boxed_func(call)


def test_the_loss_of_a_compiled_model_is_kept_before_its_next_run_writes_there(tmp_path):
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=_into_the_same_memory)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    loss_of = torch.compile(lambda x: model(x).square().mean(), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []
    with hypocenter.watch(model, optimizer, out=tmp_path / "run", audit="never"):
        for _ in range(2):
            optimizer.zero_grad()
            for scale in (1.0, 2.0):
                loss = loss_of(torch.full((2, 4), scale))
                told.append(loss.item())
                loss.backward()
            optimizer.step()

    rows = readings_from(open_run(tmp_path / "run").table().select(READINGS.names))
    assert [row.summary.absmax for row in rows if row.phase == "loss"] == told
    assert len(set(told)) == 4
