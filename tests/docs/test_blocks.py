"""Every code block of the site runs, or says that it does not and is read; every command of ours is one that exists."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import click
import given
import pytest
from blocks import DOCS, Block, blocks, hypocenter_commands, pages
from blocks import given as given_to
from runner import Broken, check_syntax, run_page

from hypocenter.cli import hypocenter

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

# Written by scripts or benches, or for those who change Hypocenter: their blocks are read, not run.
READ_ONLY = {
    "rules.md",
    "causes.md",
    "fits.md",
    "items.md",
    "checks.md",
    "measures.md",
    "cli.md",
    "options.md",
    "api.md",
}
READ_ONLY |= {"architecture.md", "life-of-a-step.md"}
# Pages whose blocks do not run yet. None is added: what cannot run says so in its title.
NOT_YET = {"tasks.md"}  # tests/cli/test_tasks.py runs it
RUN = [page for page in pages() if page.name not in READ_ONLY | NOT_YET and any(b.is_run for b in blocks(page))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    given.put(given_to(page), tmp_path)

    run_page(blocks(page), tmp_path)


@pytest.mark.parametrize("page", [page for page in pages() if page not in RUN], ids=lambda page: page.name)
def test_blocks_of_other_pages_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if block.language:
            check_syntax(block)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_a_block_says_its_language(page: Path) -> None:
    assert [str(block) for block in blocks(page) if not block.language] == []


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words name, and what is left of them."""
    context = click.Context(hypocenter)
    command: click.Command = hypocenter
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words


def options_of(command: click.Command) -> dict[str, click.Option | None]:
    options = [p for p in command.params if isinstance(p, click.Option)]
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)} | {"--help": None}


def wrong_in(line: str) -> str | None:
    """What is wrong with a command line, as far as its options and their choices tell; none if nothing."""
    command, words = command_of(shlex.split(line, comments=True)[1:])
    known, left = options_of(command), iter(words)
    for word in left:
        if word == "--" or (command.name in ("run", "determinism") and is_a_program(word)):
            return None
        if not re.match(r"--?[a-z]", word):
            continue
        name, _, value = word.partition("=")
        if name not in known:
            return f"{command.name} has no {name}"
        option = known[name]
        if option and not option.is_flag and (value or option._flag_needs_value is False):
            value = value or next(left, "")
            if is_a_program(value):  # the option stood alone
                return None
            try:
                if not isinstance(option.type, click.Path) and not value.isupper():
                    option.type.convert(value, option, click.Context(command))
            except click.BadParameter as wrong:
                return f"{name} {value}: {wrong.message}"
    return None


def is_a_program(word: str) -> bool:
    return word.endswith((".py", ".sh")) or word in (
        "torchrun",
        "accelerate",
        "deepspeed",
        "srun",
        "mpirun",
        "-m",
        "bash",
    )


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_our_commands_exist_with_their_options(page: Path) -> None:
    assert [(line, wrong) for line in hypocenter_commands(page) if (wrong := wrong_in(line))] == []


def block(language: str, text: str, title: str = "") -> Block:
    return Block("made.md", 1, language, title, text)


@pytest.mark.parametrize(
    "broken",
    [
        [block("bash", "false\n")],
        [block("bash", "hypocenter show no-such-run\n")],
        [block("python", "assert model is None\n")],
        [block("python", "x = \n", "train.py")],
        [block("yaml", "a: [\n", "not run here: needs a cluster")],
        [block("bash", "echo 'unclosed\n", "not run here: needs a GPU")],
        [block("bash", "echo 3 errors\n"), block("text", "3 warnings\n")],
        [block("fortran", "")],
    ],
    ids=lambda blocks: blocks[-1].language,
)
def test_a_block_that_is_wrong_is_seen(broken: list[Block], tmp_path: Path) -> None:
    with pytest.raises(Broken):
        run_page(broken, tmp_path)


def test_blocks_of_a_page_work_on_each_others_files_and_names(tmp_path: Path) -> None:
    run_page(
        [
            block("python", "print('hello', 3)\n", "sub/hello.py"),
            block("bash", "python sub/hello.py\n"),
            block("text", "hello 4\n"),
            block("python", "ours = 2\n"),
            block("python", "assert ours == 2 and x.shape == (16, 4)\n"),
        ],
        tmp_path,
    )


@pytest.mark.parametrize(
    "line",
    [
        "hypocenter diff a b --nois c",
        "hypocenter check a --fail-on luck",
        "hypocenter twin resume --steps many -- train.py",
    ],
)
def test_a_wrong_option_is_seen(line: str) -> None:
    assert wrong_in(line)


def test_there_are_pages_to_run() -> None:
    assert len(RUN) > 5
    assert not {name for name in READ_ONLY | NOT_YET if not (DOCS / name).is_file()} - NOT_YET - {"api.md"}
