"""`run --deterministic`, `--seed`, `--no-dropout` on unmodified programs, in forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "processes"))

import warm  # noqa: E402

TRAINS = """
model, data = torch.nn.Linear(4, 1), torch.ones(2, 4)
model(data).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
"""


def run(tmp_path: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(program, encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith("HYPOCENTER_")}
    env |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    words = ["-m", "hypocenter", "run", *options, "--out", str(tmp_path / "run"), "--force", str(script)]
    done = warm.run([sys.executable, *words], env=env, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.night
def test_all_generators_begin_at_the_seed(tmp_path: Path) -> None:
    program = "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), float(torch.rand(())))"

    first, again = (run(tmp_path, program, "--seed", "7").stdout for _ in range(2))
    other = run(tmp_path, program, "--seed", "8").stdout

    assert first == again
    assert all(a != b for a, b in zip(first.split(), other.split(), strict=True))


def test_seeds_of_the_program_win(tmp_path: Path) -> None:
    program = "import torch\ntorch.manual_seed(3)\nprint(float(torch.rand(())))"

    found = run(tmp_path, program, "--deterministic").stdout

    import torch

    expected = torch.rand((), generator=torch.Generator().manual_seed(3))
    assert float(found) == float(expected)


def test_generators_made_without_a_seed_get_one(tmp_path: Path) -> None:
    program = (
        "import random, numpy, torch\n"
        "a, b = numpy.random.default_rng(), numpy.random.default_rng()\n"
        "numpy.random.seed(); random.seed(); torch.seed()\n"
        "print(a.random(), b.random(), numpy.random.rand(), random.random(), float(torch.rand(())))\n"
        "print(numpy.random.default_rng(5).random())"
    )

    first, again = (run(tmp_path, program, "--deterministic").stdout.splitlines() for _ in range(2))

    import numpy

    assert first == again
    assert len(set(first[0].split())) == 5
    assert float(first[1]) == numpy.random.default_rng(5).random()


def test_torch_and_the_environment_are_deterministic(tmp_path: Path) -> None:
    program = (
        "import os, torch\n"
        "print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),\n"
        "      torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, os.environ['PYTHONHASHSEED'],\n"
        "      os.environ['CUBLAS_WORKSPACE_CONFIG'], os.environ['HCCL_DETERMINISTIC'])"
    )

    found = run(tmp_path, program, "--deterministic", "--seed", "9").stdout

    assert found.split() == ["True", "True", "True", "False", "9", ":4096:8", "true"]


def test_an_operation_without_a_deterministic_form_is_named_and_goes_on(tmp_path: Path) -> None:
    program = (
        "import warnings, torch\n"
        + TRAINS
        + "torch.zeros(4).put_(torch.tensor([0, 1]), torch.ones(2))\nprint('went on')"
    )

    done = run(tmp_path, program, "--deterministic")

    assert done.stdout == "went on\n"
    assert "hypocenter: put_ has no deterministic form" in done.stderr
    assert "file an issue" not in done.stderr


def test_run_json_and_the_last_lines_say_what_was_imposed(tmp_path: Path) -> None:
    done = run(tmp_path, "import torch\n" + TRAINS, "--deterministic", "--no-dropout")

    imposed = json.loads((tmp_path / "run" / "run.json").read_text())["imposed"]
    assert set(imposed) >= {"seed", "algorithms", "entropy", "dropout", "environment"}
    assert "imposed: seed 42 for random, numpy, torch; deterministic algorithms;" in done.stderr
    assert "PYTHONHASHSEED=42" in imposed["environment"]


def test_nothing_is_imposed_unasked(tmp_path: Path) -> None:
    program = (
        "import os, torch\nprint(torch.are_deterministic_algorithms_enabled(), os.environ.get('PYTHONHASHSEED'))\n"
    )

    done = run(tmp_path, program + TRAINS)

    assert done.stdout.split() == ["False", str(os.environ.get("PYTHONHASHSEED"))]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["imposed"] == {}
    assert "imposed:" not in done.stderr


DROPS = {
    "module": "torch.nn.Dropout(0.5)(x)",
    "function": "torch.nn.functional.dropout(x, 0.5, True)",
    "in place": "torch.nn.functional.dropout(x.clone(), p=0.5, training=True, inplace=True)",
    "channels": "torch.nn.Dropout1d(0.5)(x)",
    "alpha": "torch.nn.AlphaDropout(0.5)(x)",
    "feature alpha": "torch.nn.FeatureAlphaDropout(0.5)(x)",
    "of torch": "torch.dropout(x, 0.5, True)",
    "native": "torch.native_dropout(x, 0.5, True)[0]",
    "method of a module made by hand": "torch.nn.functional.dropout2d(x[None], 0.5)[0]",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", DROPS)
def test_no_value_is_dropped(how: str, tmp_path: Path) -> None:
    program = f"import torch\nx = torch.ones(64, 64)\nprint(bool(torch.equal({DROPS[how]}, x)))"

    assert run(tmp_path, program, "--no-dropout").stdout == "True\n"


def test_attention_and_recurrent_layers_drop_nothing(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from torch import nn\n"
        "torch.manual_seed(0)\n"
        "q = torch.randn(2, 4, 8, 16)\n"
        "attend = nn.functional.scaled_dot_product_attention\n"
        "same = [torch.equal(attend(q, q, q, dropout_p=0.5), attend(q, q, q)),\n"
        "        torch.equal(attend(q, q, q, None, 0.5), attend(q, q, q, is_causal=False))]\n"
        "for make in (lambda p: nn.MultiheadAttention(16, 4, dropout=p), lambda p: nn.LSTM(16, 16, 2, dropout=p),\n"
        "             lambda p: nn.GRU(16, 16, 2, dropout=p), lambda p: nn.RNN(16, 16, 2, dropout=p),\n"
        "             lambda p: nn.TransformerEncoderLayer(16, 4, 32, dropout=p)):\n"
        "    drops, plain = make(0.5), make(0.0)\n"
        "    plain.load_state_dict(drops.state_dict())\n"
        "    x = torch.randn(5, 3, 16)\n"
        "    args = (x, x, x) if isinstance(drops, nn.MultiheadAttention) else (x,)\n"
        "    first = [o[0] if isinstance(o, tuple) else o for o in (drops(*args), plain(*args))]\n"
        "    same.append(torch.equal(*first))\n"
        "packed = nn.utils.rnn.pack_sequence([torch.randn(5, 16), torch.randn(3, 16)])\n"
        "lstm = nn.LSTM(16, 16, 2, dropout=0.5)\n"
        "same.append(torch.equal(lstm(packed)[0].data, lstm(packed)[0].data))\n"
        "print(same)"
    )

    assert run(tmp_path, program, "--no-dropout").stdout == f"{[True] * 8}\n"


def test_attention_dropout_of_a_transformers_model_is_off(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "ids = torch.arange(16)[None]\n"
        "for way in ('eager', 'sdpa'):\n"
        "    sizes = dict(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16)\n"
        "    rates = dict(attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)\n"
        "    model = GPT2LMHeadModel(GPT2Config(**sizes, **rates, attn_implementation=way)).train()\n"
        "    print(torch.equal(model(ids).logits, model(ids).logits), end=' ')"
    )

    assert run(tmp_path, program, "--no-dropout").stdout.split() == ["True", "True"]


def test_seed_all_does_the_same_in_a_program(tmp_path: Path) -> None:
    program = (
        "import random, numpy, torch, hypocenter\n"
        "hypocenter.seed_all(5, dropout=False)\n"
        "x = torch.ones(64)\n"
        "print(random.random(), numpy.random.rand(), float(torch.rand(())), numpy.random.default_rng().random(),\n"
        "      torch.are_deterministic_algorithms_enabled(), torch.equal(torch.nn.Dropout(0.5)(x), x))"
    )

    first, again = (run(tmp_path, program).stdout for _ in range(2))

    assert first == again
    assert first.split()[-2:] == ["True", "True"]


def test_workers_of_a_loader_differ_from_each_other_and_repeat(tmp_path: Path) -> None:
    program = (
        "import numpy, torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Draws(Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return numpy.random.default_rng().random() + numpy.random.rand()\n"
        "def anew(k): numpy.random.seed()\n"
        "for init in (None, anew):\n"
        "    print([float(x) for x in DataLoader(Draws(), num_workers=2, worker_init_fn=init)])"
    )

    first, again = (run(tmp_path, program, "--deterministic").stdout for _ in range(2))

    assert first == again
    assert all(len(set(line.strip("[]").split(","))) == 4 for line in first.splitlines())


def test_mindspore_is_switched_at_its_import(tmp_path: Path) -> None:
    """A stand-in: it notes what it is told. Nothing of torch is needed for it."""
    (tmp_path / "mindspore.py").write_text(
        "def set_seed(seed): print('seed', seed)\ndef set_context(**options): print(options)\n", encoding="utf-8"
    )
    program = "import mindspore, random, numpy\nprint(numpy.random.rand() == numpy.random.RandomState(42).rand())"

    found = run(tmp_path, program, "--deterministic").stdout

    assert found.splitlines() == ["seed 42", "{'deterministic': 'ON'}", "True"]


def test_attention_runs_its_backward_in_the_strict_mode(tmp_path: Path) -> None:
    """What is done to a node of attention on a GPU, done to another one here."""
    program = (
        "import torch\n"
        "from hypocenter.session.imposed.algorithms import be_strict\n"
        "is_strict = lambda: not torch.is_deterministic_algorithms_warn_only_enabled()\n"
        "class Probe(torch.autograd.Function):\n"
        "    def forward(ctx, x): return x.clone()\n"
        "    def backward(ctx, g): print(is_strict()); return g\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "y = Probe.apply(Probe.apply(x)); be_strict(y.grad_fn); y.sum().backward(); print(is_strict())"
    )

    assert run(tmp_path, program, "--deterministic").stdout.split() == ["True", "False", "False"]
