"""First on PYTHONPATH in a job of `hypocenter run`: arms the post-import hook, then gives way to the user's own.

Runs in every Python process of the job (pip and compilers' helpers too), so it is small, and it leaves no trace: the
folder is off `sys.path` again, and `sitecustomize` is what it would have been, or missing as it would have been.
"""
# ruff: noqa: PTH118, PTH120
# pathlib would cost every process of the job 5 ms


def _arm() -> None:
    import os
    import sys

    here = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.modules.pop("sitecustomize", None)
    if not os.environ.get("HYPOCENTER_RUN") or sys.version_info < (3, 10):
        return
    try:
        from _frozen_importlib import ModuleSpec  # what importlib.machinery re-exports, without its 3 ms
        from _frozen_importlib_external import SourceFileLoader

        # By path, not by name: another package `hypocenter`, or none, may be importable in this process.
        loader = SourceFileLoader("_hypocenter_boot", os.path.join(os.path.dirname(here), "post_import.py"))
        hook = type(sys)(loader.name)
        hook.__spec__, hook.__file__ = ModuleSpec(loader.name, loader, origin=loader.path), loader.path
        loader.exec_module(hook)
        hook.arm()
    except Exception as error:
        sys.stderr.write(f"hypocenter: this process is not recorded ({type(error).__name__}: {error})\n")


_arm()
import sitecustomize  # type: ignore[import-not-found] # noqa: E402, F401 - the next one; site expects the error if none
