"""Run the blocks of a page in a folder of its own, in order, as a reader would who pastes them.

- `bash`, `console`: each command; ours, `python FILE` and `torchrun` in a fork of a warm Python (tests/processes).
  0, 1 and 5 (cannot tell) are answers of ours; of the program that `run` starts, and of other commands, only 0 is good.
- a block whose title is a file's name becomes that file.
- `python`: a program; blocks that follow each other share their names, with those of names.py before them.
- `text` after commands that ran, without a title: what they print. Numbers and line breaks may be others, and `…`
  stands for anything.
- commands of clusters (`srun`, `kubectl`, ...) are played by what lies in standins/, and of many ranks there are two
  (here.py).
- what a script or a launcher of a page starts as `hypocenter` or `torchrun` is a fork too.
- `hypocenter view` serves until its page was asked for.
- a block behind `<!-- run by: TEST -->`, whose commands that test takes from the page, is only read here: its syntax
  must be right. So is one with the title `not run here: WHY`; test_blocks.py lists these.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import yaml
from blocks import Block, command_lines, our_part
from here import here

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
STANDINS = HERE / "standins"
LINKED = (
    "srun",
    "scontrol",
    "mpirun",
    "ssh",
    "pdsh",
    "hypocenter",
    "torchrun",
)  # programs on PATH, for what other commands start
UNSEEN = "note: nothing was recorded"  # a launcher that loses what the run gives its ranks
VARIABLES = ".variables"  # a file of NAME=VALUE in a page's folder, which its commands see
TIMEOUT_S = 120.0
ANSWERS = (0, 1, 5)  # found nothing, found something, cannot tell; what `run` ends with is the program's own


class Broken(AssertionError):
    """A block does not do what the page says."""


def run_page(blocks: list[Block], folder: Path) -> None:
    """Do all blocks of one page in `folder`."""
    printed: str | None = None
    program: list[Block] = []
    for block in blocks:
        if block.language in ("python", "py") and block.is_run and not block.file:
            program.append(block)
            continue
        if program:
            printed, program = _run_python(program, folder), []
        if not block.is_run:
            check_syntax(block)
            printed = None
        elif block.file:
            check_syntax(block)
            target = folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            text = here(block.text) if block.language in ("bash", "sh") else block.text
            target.write_text(text, encoding="utf-8")
        elif block.language in ("bash", "sh", "console"):
            printed = "".join(run_command(line, folder, str(block)) for line in command_lines(block.text))
        elif block.language == "text" and not block.title and printed is not None:
            _compare(block, printed)
        else:
            check_syntax(block)
    if program:
        _run_python(program, folder)


def check_syntax(block: Block) -> None:
    """Read a block as its language is read.

    Raises:
        Broken: it cannot be read, or nobody knows the language.
    """
    reader = READERS.get(block.language)
    if reader is None:
        raise Broken(f"{block}: a block of language {block.language!r}; known are {', '.join(READERS)}")
    try:
        reader(block)
    except Exception as error:
        raise Broken(f"{block}: {error}") from error


def _bash(block: Block) -> None:
    text = "\n".join(command_lines(block.text)) if block.language == "console" else block.text
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)


READERS: dict[str, Callable[[Block], object]] = {
    "bash": _bash,
    "sh": _bash,
    "console": _bash,
    "python": lambda block: compile(block.text, str(block), "exec"),
    "toml": lambda block: tomllib.loads(block.text),
    "yaml": lambda block: list(yaml.safe_load_all(block.text)),
    "json": lambda block: json.loads(block.text),
    "text": lambda block: None,
    "diff": lambda block: None,
}


def environment(folder: Path) -> dict[str, str]:
    """What commands of a page see."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    shims = folder / ".bin"
    shims.mkdir(exist_ok=True)
    for name in LINKED:
        if not (shims / name).exists():
            standin = STANDINS / f"{name}.py"
            warm.link(shims / name, [str(standin)] if standin.is_file() else _warm([name]) or [])
    return kept | _variables(folder) | {
        "PATH": f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu",
        "HOME": str(folder), "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
    }  # fmt: skip


def _variables(folder: Path) -> dict[str, str]:
    file = folder / VARIABLES
    return dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines()) if file.exists() else {}


def run_command(line: str, folder: Path, place: str = "") -> str:
    """Do one command of a page in `folder`; what it prints.

    Raises:
        Broken: it ends otherwise than it should; names the place that it stands at.
    """
    line = here(line)
    for name, value in _variables(folder).items():
        line = re.sub(rf"\${name}\b", value, line)
    words = shlex.split(line, comments=True)
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line).partition(" #")[0]
    into = words.pop() if re.fullmatch(r"[^|<>;&$*{]* > [\w./-]+ *", bare) and words.pop(-2) else None
    told = _told(words)
    argv = None if re.search(r"[|<>;&$*]|\{[^}]*,", bare) and not into else _warm(words[len(told) :])
    if argv and words[:2] == ["hypocenter", "view"]:
        return _serve(place, line, argv, folder)
    if argv:
        done = warm.run(argv, env=environment(folder) | told, timeout=TIMEOUT_S, cwd=folder)
        if into:
            (folder / into).write_text(done.stdout, encoding="utf-8")
    else:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], env=environment(folder), cwd=folder, timeout=TIMEOUT_S,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    ours = our_part(line)  # behind srun, kubectl exec too
    is_answer = ours is not None and (not ours.startswith("hypocenter run ") or "--fail-on" in ours)
    if done.returncode not in (ANSWERS if is_answer else (0,)):
        raise Broken(f"{place}: `{line}` ended with {done.returncode}\n{done.stdout}{done.stderr}")
    if ours and ours.startswith("hypocenter run ") and UNSEEN in done.stderr:
        raise Broken(f"{place}: `{line}`\n{done.stderr}")
    return done.stdout + done.stderr


def _serve(place: str, line: str, argv: list[str], folder: Path) -> str:
    """Start a server, open the address that it prints, and end it as Ctrl-C does."""
    with subprocess.Popen(
        argv, env=environment(folder), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            if not address:
                raise Broken(f"{place}: `{line}` serves nothing\n{server.communicate()[1]}")
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(address, timeout=TIMEOUT_S) as answer:
                page = answer.read().decode()
            server.send_signal(signal.SIGINT)
            said = server.communicate(timeout=TIMEOUT_S)
        finally:
            server.kill()
    if server.returncode not in (0, 130) or "<html" not in page:
        raise Broken(f"{place}: `{line}` ended with {server.returncode}\n{''.join(said)}{page[:1000]}")
    return address + "".join(said)


def _told(words: list[str]) -> dict[str, str]:
    """The variables of `NAME=VALUE ... COMMAND`."""
    before = itertools.takewhile(lambda word: re.match(r"[A-Z_]+=", word), words)
    return dict(word.split("=", 1) for word in before)


def _warm(words: list[str]) -> list[str] | None:
    """The command as tests/processes knows it; none for a command of others."""
    if not words:
        return None
    if (STANDINS / f"{words[0]}.py").is_file():
        return [sys.executable, str(STANDINS / f"{words[0]}.py"), *words[1:]]
    if words[0] == "hypocenter":
        return [sys.executable, "-m", *words]
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    return [str(shutil.which("torchrun")), *words[1:]] if words[0] == "torchrun" else None


def _run_python(program: list[Block], folder: Path) -> str:
    """Blocks as one program, which keeps their lines: a traceback names the line of the page."""
    framework = "names.py" if importlib.util.find_spec("torch") else "names_mindspore.py"
    names = (HERE / framework).read_text(encoding="utf-8")
    text = names
    for block in program:
        check_syntax(block)
        placed = "\n" * block.line + block.text
        text += f"\nexec(compile({placed!r}, {block.page!r}, 'exec'))"
    script = folder / f".block-{program[0].line}.py"
    script.write_text(text, encoding="utf-8")
    done = warm.run([sys.executable, str(script)], env=environment(folder), timeout=TIMEOUT_S, cwd=folder)
    if done.returncode:
        raise Broken(f"{program[0]}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


NUMBER = re.compile(r"(?<![A-Za-z])[-+]?\d[\d,.]*(?:e[-+]?\d+)?")


def _compare(block: Block, printed: str) -> None:
    """Each line must be in what was printed, wherever that is broken into lines."""
    have = _plain(printed)
    for line in block.text.splitlines():
        pattern = ".{0,200}?".join(re.escape(part) for part in _plain(line).split("…"))
        if not re.search(pattern, have):
            raise Broken(f"{block}: not printed: {line}\n--- printed was\n{printed}")


def _plain(text: str) -> str:
    """Without what differs from machine to machine: numbers, lines that are drawn of characters, spaces."""
    return " ".join(re.sub(r"[▁▂▃▄▅▆▇█✕]+", "#", NUMBER.sub("#", text)).split())
