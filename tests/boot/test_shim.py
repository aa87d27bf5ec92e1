"""The shim gives way to the user's own sitecustomize and leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

STATE = "import sys; print(sys.path, sorted(sys.modules), 'sitecustomize' in sys.modules, sep='\\n')"


def test_without_torch_only_one_module_more_is_loaded(job: Any) -> None:
    plain = job.run("-c", STATE, shim=False).stdout.splitlines()

    path, modules, has_sitecustomize = job.run("-c", STATE).stdout.splitlines()

    assert path == plain[0]
    assert set(eval(modules)) - set(eval(plain[1])) <= {"__future__"}
    assert has_sitecustomize == plain[2]
    assert job.started == []


def test_sitecustomize_on_the_path_still_runs(job: Any) -> None:
    own = job.write("sitecustomize.py", "print('mine first')")

    done = job.run("-c", "import sitecustomize, torch; print(sitecustomize.__file__)")

    assert done.stdout.splitlines() == ["mine first", str(own)]
    assert done.stderr == ""
    assert job.started == ["whole"]


def test_sitecustomize_of_the_environment_still_runs(job: Any) -> None:
    job, site_packages = job.in_new_environment()
    installed = site_packages / "sitecustomize.py"
    installed.write_text("print('of the environment')")

    done = job.run("-c", "import sitecustomize, torch; print(sitecustomize.__file__)")

    assert done.stdout.splitlines() == ["of the environment", str(installed)]
    assert job.started == ["whole"]


def test_usercustomize_and_pth_files_are_not_touched(job: Any) -> None:
    job.write("usercustomize.py", "print('user')")
    plain = job.run("-c", "import torch", shim=False)

    done = job.run("-c", "import torch")

    assert done.stdout == plain.stdout


@pytest.mark.parametrize(
    "text", ["raise ValueError('mine')", "import no_such_module", "import sys; del sys.modules['sitecustomize']"]
)
def test_broken_sitecustomize_breaks_as_it_did(job: Any, text: str) -> None:
    job.write("sitecustomize.py", text)
    plain = job.run("-c", "print(1)", shim=False)

    done = job.run("-c", "print(1)")

    assert done.stderr == plain.stderr
    assert done.stdout == plain.stdout


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_interpreter_that_cannot_be_reached_runs_as_ever(job: Any, flag: str) -> None:
    done = job.run(flag, "-c", "print('here')")

    assert (done.stdout, done.stderr) == ("here\n", "")
    assert job.started == []


def test_site_imported_late_reaches_the_process_too(job: Any) -> None:
    done = job.run("-S", "-c", "import site; site.main(); import torch")

    assert done.stderr == ""
    assert job.started == ["whole"]


def test_a_shim_without_its_hook_says_so_and_goes_on(job: Any) -> None:
    shim = Path(__file__).parents[2] / "src" / "hypocenter" / "boot" / "shim" / "sitecustomize.py"
    lonely = job.write("lonely/sitecustomize.py", shim.read_text())

    done = job.run("-c", f"import sys; sys.path.insert(0, {str(lonely.parent)!r}); import sitecustomize", expect=1)

    assert "this process is not recorded (FileNotFoundError" in done.stderr
    assert "ModuleNotFoundError: No module named 'sitecustomize'" in done.stderr
