"""A bundle shows its failure again in a fresh process, and is data, not code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from torch import nn

import hypocenter
from hypocenter.errors import BundleError
from hypocenter.record.reader import open_run
from hypocenter.replay.__main__ import main, require_harmless


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    out = tmp_path_factory.mktemp("bundle") / "run"
    torch.manual_seed(0)
    model = nn.Linear(64, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with hypocenter.watch(out=out):
        for step in range(3):
            x = torch.randn(4, 64).half() * (4e4 if step == 2 else 1)
            loss = (model(x) * (8 if step == 2 else 1)).float().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ((_, path),) = open_run(out).evidence_files()
    return path.parent


def run(*command, env=None):
    """In a process of its own: for what must not be there, and in the others' forks is."""
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=env)


def forked(*command):
    return warm.run([sys.executable, *command], env=os.environ, timeout=300)


def test_replay_shows_the_failure_again(bundle):
    done = forked("-m", "hypocenter.replay", str(bundle))

    assert done.returncode == 0, done.stderr
    assert "the failure shows again" in done.stdout
    assert "+inf x" in done.stdout


def test_the_script_needs_torch_and_safetensors_only(bundle):
    done = run(
        "-c",
        "import sys, runpy; sys.modules['hypocenter'] = None; sys.argv = ['repro.py']; "
        f"runpy.run_path({str(bundle / 'repro.py')!r}, run_name='__main__')",
    )

    assert done.returncode == 0, done.stderr
    assert "float64" in done.stdout


def test_a_bundle_that_asks_for_a_foreign_op_is_refused(bundle, tmp_path):
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    op = json.loads((bundle / "op.json").read_text())
    (hostile / "op.json").write_text(json.dumps({**op, "op": "evil.run.default"}))
    (hostile / "repro.py").write_text("raise SystemExit('code of a stranger ran')")

    done = forked("-m", "hypocenter.replay", str(hostile))

    assert done.returncode == 4
    assert done.stderr.startswith("error[bad-bundle]")
    assert "stranger" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 99, "op": "aten.mm.default"}'])
def test_a_broken_bundle_gives_one_clear_error(tmp_path, content):
    (tmp_path / "op.json").write_text(content)

    with pytest.raises(BundleError) as told:
        main(str(tmp_path))

    assert told.value.exit_code == 4
    assert str(told.value).startswith("error[bad-bundle]")


@pytest.mark.parametrize("body", ["raise ImportError('No module named torch')", "raise OSError('libcudart.so.12: no')"])
def test_without_torch_there_is_one_clear_error(tmp_path, body):
    (tmp_path / "hidden" / "torch").mkdir(parents=True)
    (tmp_path / "hidden" / "torch" / "__init__.py").write_text(body)
    env = os.environ | {"PYTHONPATH": str(tmp_path / "hidden")}

    done = run("-m", "hypocenter", "replay", str(tmp_path), env=env)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == (
        "error[missing-framework]: a bundle is replayed with torch, and this Python cannot import it"
    )
    assert "Traceback" not in done.stderr
    assert "= fix: " in done.stderr


def test_a_word_too_many_is_an_error_of_usage(tmp_path):
    done = forked("-m", "hypocenter", "replay", str(tmp_path), "--verbose")

    assert done.returncode == 2
    assert done.stderr.startswith("error[bad-option]: unknown option '--verbose'")


@pytest.mark.parametrize(
    "name", ["aten.from_file.default", "aten.save.default", "aten._print.default", "aten.no.default"]
)
def test_an_op_that_is_no_computation_is_refused(name: str) -> None:
    with pytest.raises(BundleError):
        require_harmless(name, Path("op.json"))


@pytest.mark.parametrize("name", ["aten.mm.default", "aten.div.Tensor_mode", "aten.native_layer_norm.default"])
def test_a_computation_is_not(name: str) -> None:
    require_harmless(name, Path("op.json"))
