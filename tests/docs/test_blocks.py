"""Every code block of the site runs, or says that it does not and is read; every command of ours is one that exists."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click
import given
import pytest
from blocks import DOCS, ROOT, Block, blocks, can_be_split, hypocenter_commands, our_part, pages, shell_lines
from blocks import given as given_to
from runner import Broken, check_syntax, run_page

from hypocenter.cli import hypocenter

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

pytestmark = pytest.mark.long
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
ELSEWHERE = {
    "tasks.md": "tests/cli/test_tasks.py", "mindspore.md": "tests/mindspore/test_page.py",
    "trl.md": "tests/frameworks/test_trl.py", "megatron.md": "tests/frameworks/test_megatron.py",
}  # fmt: skip
"""Pages of which another test runs all blocks, because it has what they need."""
NOT_RUN = {
    "hypocenter run deepspeed --num_gpus 8 train.py --deepspeed ds.json": "20 s for what launch.sh, on the same page, "
    "does on two nodes with the same launcher; DeepSpeed's own parser reads it",
}
"""Commands that nothing runs, with the reason. verl's page runs on stand-ins for Ray and verl (standins/modules)."""
BY_NIGHT = {
    "agents.md", "align.md", "deepspeed.md", "lightning.md", "transformers.md", "twin.md", "verl.md", "view.md",
}  # fmt: skip
"""Pages whose blocks take 20 s and more, and what they are about has tests of its own by day."""
RUN = [page for page in pages() if page.name not in READ_ONLY | set(ELSEWHERE) and any(b.is_run for b in blocks(page))]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.night) if page.name in BY_NIGHT else page for page in RUN],
    ids=[page.name for page in RUN],
)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    given.put(given_to(page), tmp_path)

    run_page(blocks(page), tmp_path)


@pytest.mark.parametrize("page", [page for page in pages() if page not in RUN], ids=lambda page: page.name)
def test_blocks_of_other_pages_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if block.language:
            check_syntax(block)


def test_what_does_not_run_is_listed_with_its_reason() -> None:
    refused = [block for page in pages() for block in blocks(page) if block.is_refused]

    assert {line for block in refused for line in shell_lines(block)} == set(NOT_RUN)
    assert all(shell_lines(block) for block in refused)


def test_a_test_that_runs_a_block_takes_its_commands_from_the_page() -> None:
    missing = []
    for block in [block for page in pages() for block in blocks(page) if block.run_by]:
        test = (ROOT / block.run_by).read_text(encoding="utf-8")
        taken = re.findall(rf'page_line\("{block.page}", "([^"]+)"\)', test)
        missing += [(block.page, line) for line in shell_lines(block) if not any(words in line for words in taken)]

    assert missing == []


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_that_another_test_runs_is_named_there(page: str) -> None:
    assert page in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")


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


def wrong_in(line: str) -> str | None:
    """What our own parser says against a command line; none if nothing. Files and runs need not be there."""
    words = shlex.split(line, comments=True)
    ends = [i for i, word in enumerate(words) if re.fullmatch(r"[|<>&;]+.*|2>.*", word)]
    command, words = command_of(words[1 : ends[0] if ends else None])
    if not words:
        return None
    try:
        command.make_context(command.name, list(words))  # click takes words out of the list
    except click.exceptions.Exit:  # --help
        return None
    except click.BadParameter as wrong:
        is_elsewhere = isinstance(getattr(wrong.param, "type", None), click.Path) or PLACEHOLDER.search(wrong.message)
        if isinstance(wrong, click.MissingParameter):  # in a sentence a command stands with an option alone
            return None if all(word.startswith("-") for word in words) else f"{command.name}: no {wrong.param}"
        return None if is_elsewhere else f"{command.name}: {wrong.message}"
    except click.UsageError as wrong:
        return f"{command.name}: {wrong.message}"
    return None


PLACEHOLDER = re.compile(r"'(?:[A-Z]|[A-Z][A-Z:,-]+|…)'")  # `--step N` of prose


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_our_commands_exist_with_their_options(page: Path) -> None:
    assert [(line, wrong) for line in hypocenter_commands(page) if (wrong := wrong_in(line))] == []


def others_command(words: list[str]) -> Callable[[list[str]], object] | None:
    """The parser of a launcher, as its own package has it; none for what is no launcher of Python's."""
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        return get_args_parser().parse_args
    if words[:2] == ["accelerate", "launch"]:
        from accelerate.commands.launch import launch_command_parser

        return lambda given: launch_command_parser().parse_args(given[1:])
    if words[0] == "deepspeed":
        from deepspeed.launcher.runner import parse_args

        return parse_args
    return None


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_command_lines_of_launchers_are_theirs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for line in [line for block in blocks(page) for line in shell_lines(block)]:
        at = re.search(r"(?:^|\s)(torchrun|accelerate launch|deepspeed) ", line)
        words = shlex.split(line[at.start() :], comments=True) if at and can_be_split(line[at.start() :]) else []
        if words and (parse := others_command(words)):
            try:
                parse(words[1:])
            except SystemExit:
                wrong.append((line, capsys.readouterr().err))

    assert wrong == []


def block(language: str, text: str, title: str = "") -> Block:
    return Block("made.md", 1, language, title, text)


@pytest.mark.parametrize(
    "broken",
    [
        [block("bash", "false\n")],
        [block("bash", "hypocenter show no-such-run\n")],
        [block("python", "assert model is None\n")],
        [block("python", "x = \n", "train.py")],
        [block("bash", "pip install 'hypocenter[veiw]'\n")],
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
        "hypocenter twin resume --stop-at many -- train.py",
        "hypocenter run --levle ops train.py",
        "hypocenter diff .",
    ],
)
def test_a_wrong_option_is_seen(line: str) -> None:
    assert wrong_in(line)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("bash", "srun --ntasks-per-node=1 hypocenter run --levle ops train.py\n"),
        ("bash", "kubectl exec pod-0 -- hypocenter check /runs/a --fail-on luck\n"),
        ("bash", "torchrun --nproc-per-node 8 -m hypocenter doctor --com\n"),
        ("yaml", 'command: [sh, -c, "hypocenter run --outt /runs/a torchrun train.py"]\n'),
    ],
)
def test_a_wrong_option_behind_something_else_is_seen(language: str, text: str) -> None:
    found = [our_part(line) for line in shell_lines(block(language, text))]

    assert [line for line in found if line and wrong_in(line)]


def test_there_are_pages_to_run() -> None:
    assert len(RUN) > 5
    assert not {name for name in READ_ONLY | set(ELSEWHERE) if not (DOCS / name).is_file()} - {"api.md"}
