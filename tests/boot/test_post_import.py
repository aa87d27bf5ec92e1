"""A session starts once torch or mindspore is whole, in every way a process can come to import it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from hypocenter.post_import_finder import PostImportFinder

SPAWN = """
import multiprocessing
def work():
    import torch
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=work) for _ in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
"""
LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["torch"] = module
spec.loader.exec_module(module)
print("not yet")
module.complete
"""
ANOTHER_HOOK = """
import sys
class Another:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            for finder in sys.meta_path:
                if finder is not self:
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        return spec
sys.meta_path.insert(0, Another())
import torch
"""


@pytest.mark.parametrize(
    "code",
    [
        "import torch",
        "import torch.nn",
        "from torch import nn; import torch",
        "import importlib; importlib.import_module('torch')",
        "import threading; t = threading.Thread(target=__import__, args=('torch',)); t.start(); t.join()",
        "import torch, importlib; importlib.reload(torch); assert torch.complete",
        "import importlib.util as u; [u.find_spec('torch') for _ in range(3)]; import torch",
        "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'], check=True)",
        LAZY,
        ANOTHER_HOOK,
    ],
)
def test_one_session_once_torch_is_whole(job: Any, code: str) -> None:
    done = job.run("-c", code)

    assert done.stderr == ""
    assert job.started == ["whole"]


@pytest.mark.parametrize("code", ["import mindspore", "import mindspore.nn", "from mindspore import nn"])
def test_one_session_once_mindspore_is_whole(job: Any, code: str) -> None:
    done = job.run("-c", code)

    assert done.stderr == ""
    assert job.started == ["whole"]


def test_a_session_for_each_framework_of_one_process(job: Any) -> None:
    job.run("-c", "import torch, mindspore")

    assert job.started == ["whole", "whole"]
    assert len((job.folder / ".reached").read_text().splitlines()) == 1


@pytest.mark.parametrize("code", ["import importlib.util as u; assert u.find_spec('torch')", "import torchless"])
def test_no_session_without_the_import(job: Any, code: str) -> None:
    job.write("torchless.py", "")

    job.run("-c", code)

    assert job.started == []


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_of_multiprocessing_are_reached(job: Any, method: str) -> None:
    script = job.write("parent.py", SPAWN.format(method=method))

    job.run(str(script))

    assert job.started == ["whole", "whole"]


def test_module_run_with_m_is_reached(job: Any) -> None:
    job.write("package/__init__.py", "")
    job.write("package/train.py", "import torch, sys; print(sys.argv[1:])")

    done = job.run("-m", "package.train", "--level", "7")

    assert done.stdout == "['--level', '7']\n"
    assert job.started == ["whole"]


def test_torch_that_a_pth_file_imported_is_reached(job: Any) -> None:
    job, site_packages = job.in_new_environment()
    (site_packages / "early.pth").write_text("import torch\n")

    done = job.run("-c", "import sys; print('torch' in sys.modules)")

    assert done.stdout == "True\n"
    assert job.started == ["whole"]


def test_import_that_failed_can_be_repeated(job: Any) -> None:
    job.write(
        "torch/__init__.py",
        "import builtins\nif not hasattr(builtins, 'again'): raise OSError('libcudart')\ncomplete = 1",
    )
    code = "import builtins\ntry: import torch\nexcept OSError as e: print(e)\nbuiltins.again = 1\nimport torch"

    done = job.run("-c", code)

    assert done.stdout == "libcudart\n"
    assert job.started == ["whole"]


def test_torch_looks_as_it_did(job: Any) -> None:
    code = (
        "import torch, inspect, pickle, sys; l = torch.__spec__.loader; print(type(l).__name__, sorted(vars(l)), "
        "torch.__loader__ is l, torch.__file__, torch.__spec__.origin, len(inspect.getsource(torch)))"
    )
    plain = job.run("-c", code, shim=False)

    done = job.run("-c", code)

    assert done.stdout == plain.stdout


def test_missing_torch_is_missing_as_ever(job: Any) -> None:
    job.remove("torch")
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; import torch"

    done = job.run("-c", code, expect=1)

    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"


def test_missing_dependency_is_said_once_a_run(job: Any) -> None:
    job.write("hypocenter/session.py", "raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')")

    first, second = job.run("-c", "import torch; print(1)"), job.run("-c", "import torch; print(1)")

    assert first.stdout == second.stdout == "1\n"
    assert first.stderr.startswith(
        f"hypocenter: not recording, the program goes on: {sys.executable} cannot import pyarrow"
    )
    assert len(first.stderr.splitlines()) == 1
    assert second.stderr == ""


@pytest.mark.parametrize("text", ["def start_from_env(): raise KeyError(1)", "start_from_env = None", "raise OSError"])
def test_failure_of_the_session_is_not_the_programs(job: Any, text: str) -> None:
    job.write("hypocenter/session.py", text)

    done = job.run("-c", "import torch; print(torch.complete)")

    assert done.stdout == "True\n"
    assert done.stderr.startswith("hypocenter: not recording, the program goes on: ")


def test_an_interpreter_without_hypocenter_gets_it_and_nothing_else(job: Any) -> None:
    job.remove("hypocenter")
    code = (
        "import sys; before = list(sys.path); import hypocenter, hypocenter.nouns; "
        "print(hypocenter.__file__, sys.path == before)"
    )

    done = job.run("-c", code)

    file, is_same_path = done.stdout.split()
    assert file == str(importlib.util.find_spec("hypocenter").origin)
    assert is_same_path == "True"


def test_finder_ignores_every_other_module() -> None:
    calls: list[str] = []
    finder = PostImportFinder("torch", lambda: calls.append("started"))

    found = [finder.find_spec(name) for name in ("json", "torch.nn", "torchvision", "torch_npu")]

    assert found == [None] * 4
    assert calls == []
