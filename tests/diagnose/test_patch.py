"""The code change as a diff: it applies with git, the patched program is finite, and words where there is no diff."""

import ast
import contextlib
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import hypocenter
from hypocenter.diagnose.patch import api, propose, statements
from hypocenter.diagnose.source_text import CannotRewrite, Text, applied

CAMERA = """\
import torch
from torch import nn


class Projection(nn.Module):
    def forward(self, intrinsic, extrinsic):
        # millimetres
        proj = intrinsic @ extrinsic
        return proj / proj.norm()


def run():
    return Projection()(torch.full((3, 3), 1266.0), torch.full((3, 4), 1000.0))
"""

ATTENTION = '''\
import torch
from torch import nn


class LinearAttention(nn.Module):
    """Unscaled."""

    def __init__(self):
        super().__init__()
        self.eps = 1e-6
        self.out = nn.Linear(4, 4)

    def forward(
        self,
        Q, K,  # (batch, length, heads, width)
        values,
        mask=None,
    ):
        """Attend."""
        if mask is not None:
            K = K.masked_fill(mask, 0)
        v_length = values.size(1)
        values = values / v_length
        KV = torch.einsum("nshd,nshv->nhdv", K, values)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        queried = torch.einsum(
            "nlhd,nhdv,nlh->nlhv", Q, KV, Z  # all three
        ) * v_length
        return self.out(queried)


def run():
    x = torch.full((1, 4096, 2, 4), 60.0)
    return LinearAttention()(x, x, x, mask=torch.zeros(1, 4096, 1, 1, dtype=torch.bool))
'''

TUPLE = """\
import torch as th
from torch import nn


class Scores(nn.Module):
\tdef forward(self, q: th.Tensor, /, *rest, ids, scale=2.0, **named):
\t\tk = rest[0]
\t\tscores = th.bmm(q, k.transpose(1, 2)) * scale
\t\treturn scores.softmax(-1), named["more"][ids]


torch = th


def run():
\tx = th.full((1, 4, 8), 200.0)
\treturn Scores()(x, x, ids=th.tensor([0]), more=th.ones(2))
"""


@pytest.fixture
def program(tmp_path):
    def write(source, name="model.py"):
        path = tmp_path / name
        path.write_text(source, encoding="utf-8")
        return path

    return write


def line_of(source, start):
    return next(n for n, line in enumerate(source.splitlines(), 1) if line.strip().startswith(start))


def outcome(path):
    """What the program's `run` gives under float16 autocast: finite or not, and the formats."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.autocast("cpu", torch.float16):
        out = runpy.run_path(str(path))["run"]()
    outs = out if isinstance(out, tuple) else (out,)
    return " ".join(["finite" if all(o.isfinite().all() for o in outs) else "infinite", *(str(o.dtype) for o in outs)])


def apply(diff, folder):
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"], input=diff.encode(), cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode() + diff


@pytest.mark.parametrize(
    ("source", "lines", "how", "dtypes"),
    [
        (CAMERA, ["proj ="], "statement", "torch.float32"),
        (CAMERA, ["def forward"], "forward", "torch.float32"),
        (ATTENTION, ["Z = 1", "queried = "], "statement", "torch.float16"),
        (ATTENTION, ["Z = 1"], "forward", "torch.float32"),
        (TUPLE, ["scores ="], "statement", "torch.float32 torch.float32"),
        (TUPLE, ["return scores"], "forward", "torch.float32 torch.float32"),
    ],
)
def test_the_diff_applies_and_the_program_is_finite_with_it(program, tmp_path, source, lines, how, dtypes):
    path = program(source)
    assert outcome(path).startswith("infinite")

    found = propose(path, [line_of(source, line) for line in lines], how, below=tmp_path)
    apply(found.diff, tmp_path)

    assert found.words == ""
    assert outcome(path) == f"finite {dtypes}"


def test_it_is_what_a_person_would_write(program, tmp_path):
    path = program(CAMERA)

    diff = propose(path, [line_of(CAMERA, "proj =")], "statement").diff

    assert [line for line in diff.splitlines()[2:] if line.strip()] == [
        "@@ -5,7 +5,8 @@",
        " class Projection(nn.Module):",
        "     def forward(self, intrinsic, extrinsic):",
        "         # millimetres",
        "-        proj = intrinsic @ extrinsic",
        "+        with torch.autocast(intrinsic.device.type, enabled=False):",
        "+            proj = intrinsic.float() @ extrinsic.float()",
        "         return proj / proj.norm()",
    ]


def test_a_whole_forward_calls_its_old_body(program, tmp_path):
    path = program(CAMERA)

    diff = propose(path, [line_of(CAMERA, "def forward")], "forward", below=tmp_path).diff

    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "        with torch.autocast(intrinsic.device.type, enabled=False):",
        "            out = self._forward_in_float32(intrinsic.float(), extrinsic.float())",
        "        return out.to(intrinsic.dtype)",
        "",
        "    def _forward_in_float32(self, intrinsic, extrinsic):",
    ]
    assert not [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]


def test_statements_that_follow_each_other_share_a_block(program):
    path = program(ATTENTION)
    at = [line_of(ATTENTION, start) for start in ("values = values", "KV =", "Z = 1", "return")]

    diff = propose(path, at, "statement").diff

    assert diff.count("enabled=False") == 2
    assert "+            values = values.float() / v_length" in diff
    assert "K.float().sum(dim=1)" in diff
    assert "self.eps.float()" not in diff


def rewritten(body, line=1, *, cast_back=False, head="import torch, math\n"):
    source = f"{head}def f(self, x, y, i, n, s):\n{textwrap.indent(body, '    ')}"
    text = Text(source)
    changed = applied(text, statements(text, [line + 1 + head.count(chr(10))], cast_back=cast_back))
    ast.parse("".join(changed))
    return "".join(changed)[len(head) :].split("\n", 1)[1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("z = x @ y.T", "z = x.float() @ y.T.float()"),
        ("z = torch.matmul(x[i], y)", "z = torch.matmul(x[i].float(), y.float())"),
        (
            "z = torch.baddbmm(s, x, y, beta=1, alpha=n)",
            "z = torch.baddbmm(s.float(), x.float(), y.float(), beta=1, alpha=n)",
        ),
        ("z = x.pow(2).mean(-1)", "z = x.float().pow(2).mean(-1)"),
        ("z = x.view(2, n).sum(n)", "z = x.view(2, n).float().sum(n)"),
        ("z = torch.where(i > 0, x, y)\nw = z * n", None),
        ("z = torch.embedding(i, n)", None),
        ("z = x.exp() / math.sqrt(n)", "z = x.float().exp() / math.sqrt(n)"),
        ("z = self.proj(x.tanh())", "z = self.proj(x.float().tanh())"),
        ("z = torch.cat([x, y], dim=n)", "z = torch.cat([x.float(), y.float()], dim=n)"),
        ("z = torch.gather(x, n, i)", "z = torch.gather(x.float(), n, i)"),
        ("return x @ y, n", "return x.float() @ y.float(), n"),
        ("x += torch.mm(y, y)", "x = x.float() + torch.mm(y.float(), y.float())"),
        ("x *= 3 + y.norm()", "x = x.float() * (3 + y.float().norm())"),
        ("x @= y", None),
        ("z: torch.Tensor = -x.sum()", "z: torch.Tensor = -x.float().sum()"),
        ("z = é @ x  # ü", "z = é.float() @ x.float()  # ü"),
    ],
)
def test_the_cast_is_where_the_tensors_are(before, after):
    if after is None:
        with pytest.raises(CannotRewrite):
            rewritten(before)
        return

    lines = rewritten(before).splitlines()

    assert lines[0].strip().startswith("with torch.autocast(")
    assert lines[1].strip() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("z = x @ y", "z = (x.float() @ y.float()).to(x.dtype)"),
        ("x = x.sum()", "x = x.float().sum().to(x.dtype)"),
        ("return torch.mm(x, y)", "return torch.mm(x.float(), y.float()).to(x.dtype)"),
    ],
)
def test_a_result_may_be_cast_back(before, after):
    assert rewritten(before, cast_back=True).splitlines()[1].strip() == after


@pytest.mark.parametrize(
    ("body", "line", "why"),
    [
        ("if x.sum() > 0:\n    pass", 1, "part of `if`"),
        ("z = x @ y; w = 1", 1, "more than one statement"),
        ("for z in x @ y: pass", 1, "part of `"),
        ("if n: z = x @ y", 1, "more than one statement"),
        ("z = n + s", 1, "does not show which"),
        ("z = x @ '''a\nb'''", 1, "text of several lines"),
        ("w = 1\n\nz = 2", 2, "part of `function`"),
    ],
)
def test_why_there_is_no_diff(body, line, why):
    with pytest.raises(CannotRewrite, match=why):
        rewritten(body, line)


def test_torch_is_imported_if_it_is_not():
    text = Text("from lib import f\n\n\ndef g(x, y):\n    return x @ y\n")

    changed = "".join(applied(text, statements(text, [5])))

    assert changed.startswith("from lib import f\nimport torch\n")
    assert "with torch.autocast(x.device.type" in changed


def test_line_ends_and_a_missing_last_one_are_kept(program, tmp_path):
    path = tmp_path / "windows.py"
    path.write_bytes(b"import torch\r\ndef f(x, y):\r\n    return x @ y")

    found = propose(path, [3], "statement", below=tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    apply(found.diff, tmp_path)

    assert path.read_bytes() == (
        b"import torch\r\ndef f(x, y):\r\n    with torch.autocast(x.device.type, enabled=False):\r\n"
        b"        return x.float() @ y.float()"
    )


@pytest.mark.parametrize("how", ["forward", "statement"])
def test_a_librarys_source_is_left_alone(how):
    for module in ("pytest", "textwrap"):
        words = propose(sys.modules[module].__file__, [10], how, targets=["encoder.0.attn"]).words

        assert "belongs to a library" in words
        assert 'hypocenter.island(model, ["encoder.0.attn"])' in words


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read"), (b"def f(:", "does not parse"), (b"\xff\xfe\x00", "no diff|cannot be read")],
)
def test_what_cannot_be_read_gives_words(tmp_path, content, why):
    path = tmp_path / "model.py"
    if content is not None:
        path.write_bytes(content)

    found = propose(path, [1], "statement", targets=["a"])

    assert found.diff == ""
    assert any(part in found.words for part in why.split("|"))
    assert api(["a"]) in found.words


def test_any_line_of_any_file_gives_a_diff_that_parses_or_words():
    source = Path(hypocenter.__file__).parent / "summary/reducers/torch.py"
    text = Text(source.read_text(encoding="utf-8"))
    rewritten = []

    for line in range(1, source.read_text(encoding="utf-8").count("\n")):
        with contextlib.suppress(CannotRewrite):
            assert ast.parse("".join(applied(text, statements(text, [line]))))
            rewritten.append(line)

    assert len(rewritten) > 5


def test_a_generator_and_a_static_method_give_words(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        "class A:\n    def g(self, x):\n        yield x\n    @staticmethod\n    def s(x):\n        return x\n"
    )

    assert "generator" in propose(path, [3], "forward").words
    assert "no method" in propose(path, [6], "forward").words


HALF = """\
import torch
from torch import nn


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x):
        q = self.query(x)
        scores = q @ x.T
        return scores / scores.amax()


def built():
    torch.manual_seed(0)
    return nn.Sequential(Scores(), nn.Linear(4, 4)).half()


def run():
    return model(torch.full((4, 8), 300.0).half())


model = built()
"""


@pytest.mark.parametrize("how", ["forward", "statement"])
def test_in_a_half_precision_model(program, tmp_path, how):
    source = HALF.replace("scores / scores.amax()", "scores * 0 + q.mean()") if how == "statement" else HALF
    path = program(source)
    lines = [line_of(source, "q ="), line_of(source, "scores =")] if how == "forward" else [line_of(source, "scores =")]

    found = propose(path, lines, how, below=tmp_path, half=True, targets=["0"])
    apply(found.diff, tmp_path)

    if how == "statement":
        assert "(q.float() @ x.T.float()).to(q.dtype)" in found.diff
        assert found.words == 'the diff changes every Scores; hypocenter.island(model, ["0"]) only what it names'
        return
    assert 'model.get_submodule("0").float()' in found.words
    path.write_text(path.read_text().replace("model = built()", "model = built()\nmodel.get_submodule('0').float()"))
    space = runpy.run_path(str(path))
    assert space["run"]().dtype == torch.float16
    assert space["run"]().isfinite().all()
