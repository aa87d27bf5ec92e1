"""The cases of the seed documents as real models: named, cured by the smallest island, and trained with it.

Each is trained in float16 autocast under a real GradScaler. `hypocenter cure` must find an island no larger than the
module that holds the operation, and 200 steps from the same seed with that island must follow the float32 run.
"""

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gallery"))

import casebook
import warm

from hypocenter.diagnose.cure import Answer
from hypocenter.json_answer import published

pytestmark = pytest.mark.long
FOLDER = Path(__file__).parent / "seed_models"
LINE = re.compile(r"^step (\d+) loss (\S+) scale (\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Seed:
    script: str
    module: str
    line: str  # part of the source line that is named
    causes: tuple[str, ...]


SEEDS = [
    Seed(
        script="camera_projection.py",
        module="projection",
        line="torch.matmul(self.intrinsic, extrinsic)",
        causes=("format-overflow",),
    ),
    Seed(
        script="vision_transformer.py",
        module="blocks.1.attn",
        line="k / k.norm(dim=-1, keepdim=True)",
        causes=("format-overflow",),
    ),
]

LINEAR_ATTENTION = Seed(
    script="linear_attention.py",
    module="layers.1.attention.inner_attention",
    line="K.sum(dim=1)",
    causes=("accumulation-overflow", "format-overflow"),
)
# By day a case of the gallery is this fault (a03).
PARAMS = [*SEEDS, pytest.param(LINEAR_ATTENTION, marks=pytest.mark.night)]


def by_script(seed: Seed) -> str:
    return seed.script


def hypocenter(*words: str) -> subprocess.CompletedProcess[str]:
    return warm.run([sys.executable, "-m", "hypocenter", *words], timeout=400, env=casebook.environment())


def trained(seed: Seed, *flags: str) -> tuple[list[float], list[float]]:
    """Losses and loss scales of 200 steps."""
    command = [sys.executable, str(FOLDER / seed.script), *flags]
    done = warm.run(command, env=casebook.environment(), timeout=400)
    assert done.returncode == 0, done.stderr
    rows = LINE.findall(done.stdout)
    return [float(loss) for _, loss, _ in rows], [float(scale) for *_, scale in rows]


@pytest.fixture(scope="module", params=PARAMS, ids=by_script)
def recorded(request, tmp_path_factory):
    """A seed model trained for a few steps under `hypocenter run`, and where it was recorded."""
    seed = request.param
    out = tmp_path_factory.mktemp(seed.script.removesuffix(".py")) / "run"
    done = hypocenter("run", "--out", str(out), str(FOLDER / seed.script), "--steps", "3")
    assert done.returncode == 0, done.stderr
    return seed, out


def test_the_finding_names_the_module_and_the_line(recorded):
    seed, out = recorded

    diagnosis = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))

    first = diagnosis["findings"][0]
    assert diagnosis["status"] == "findings"
    assert (first["severity"], first["step"], first["site"]) == ("error", 0, seed.module)
    assert seed.line in first["source"]["text"]
    assert first["cause"] in seed.causes
    assert first["confidence"] == "proven"


def test_cure_finds_the_module_itself_and_verifies_it(recorded):
    seed, out = recorded

    done = hypocenter("cure", str(out), "--json", "--no-rerun")
    answer = json.loads(done.stdout)

    jsonschema.Draft202012Validator(published(Answer)).validate(answer)
    assert done.returncode == 0
    assert (answer["status"], answer["action"], answer["verified"]) == ("cured", "fp32-island", True)
    assert answer["targets"] == [seed.module]
    assert answer["replays"] <= 10
    chosen = answer["alternatives"][0]
    assert chosen["verified"]
    assert chosen["error"] < 0.1
    assert answer["patch_verified"]
    assert "+++ b/" in answer["patch"]
    assert answer["api"] == f'hypocenter.island(model, ["{seed.module}"])'


@pytest.mark.slow
def test_without_the_island_the_scale_collapses(recorded):
    seed, _ = recorded

    losses, scales = trained(seed, "--steps", "40")

    assert len(losses) == 40
    assert scales[-1] < 1e-3


@pytest.mark.slow
def test_with_the_island_200_steps_follow_float32(recorded):
    seed, _ = recorded

    exact, _ = trained(seed, "--precision", "fp32")
    losses, scales = trained(seed, "--island", seed.module)

    assert len(losses) == len(exact) == 200
    assert all(map(math.isfinite, losses))
    assert scales[-1] >= 128
    for part in (slice(None), slice(150, None)):
        assert abs(sum(losses[part]) - sum(exact[part])) <= 0.01 * sum(exact[part])
