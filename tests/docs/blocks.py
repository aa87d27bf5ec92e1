"""The code blocks of a page: fenced ones with their language and title, and what stands indented by four spaces."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
INDENTED = re.compile(r"(?:\A|\n[ \t]*\n)((?: {4}[^\n]*\n|[ \t]*\n)+)")
NOT_RUN = "not run here"
RUN_BY = re.compile(r"<!-- run by: (\S+) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A block of `page` that begins at `line`."""

    page: str
    line: int
    language: str
    title: str
    text: str
    run_by: str = ""
    """The test that runs its commands, taken from the page with `page_line`."""

    @property
    def is_refused(self) -> bool:
        """Whether it says itself, for the reader to see, that it is not run."""
        return self.title.startswith(NOT_RUN)

    @property
    def is_run(self) -> bool:
        """Whether it is run where its page is."""
        return not self.is_refused and not self.run_by

    @property
    def file(self) -> str | None:
        """The file that it is, by its title (`train.py`, `conf/run.toml`)."""
        return self.title if re.fullmatch(r"[\w./-]+\.\w+", self.title) else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All pages of the site."""
    return sorted(DOCS.rglob("*.md"))


def given(page: Path) -> list[str]:
    """What a page needs before its first block, as it says in a comment: `<!-- given: train.py, runs/mine -->`."""
    found = re.search(r"<!-- given: (.*?) -->", page.read_text(encoding="utf-8"))
    return [name.strip() for name in found[1].split(",")] if found else []


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order. Of indented ones language and title are empty."""
    text = page.read_text(encoding="utf-8")
    found = [
        (
            match.start(), match["language"], _title(match["info"]), _without(match["indent"], match["text"]),
            _run_by(text[: match.start()]),
        )
        for match in FENCE.finditer(text)
    ]  # fmt: skip
    prose = FENCE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    prose = re.sub(
        r"^(?:[-*]|\d+\.) .*(?:\n(?: .*|))*", lambda match: re.sub(r"[^\n]", "x", match[0]), prose, flags=re.M
    )
    indented = [match for match in INDENTED.finditer(prose) if match[1].strip()]
    found += [(match.start(1), "", "", _without("    ", match[1]), "") for match in indented]
    return [Block(page.name, text.count("\n", 0, at) + 1, *rest) for at, *rest in sorted(found)]


def page_line(page: str, words: str) -> str:
    """The one command of a page that has these words: for a test that runs it in the page's place."""
    (line,) = {line for block in blocks(DOCS / page) for line in shell_lines(block) if words in line}
    return line.partition(" #")[0].strip()


def _run_by(before: str) -> str:
    found = RUN_BY.search(before)
    return found[1] if found else ""


def _title(info: str) -> str:
    found = re.search(r'title="([^"]*)"', info)
    return found[1] if found else ""


def _without(indent: str, text: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.M)


def command_lines(text: str) -> list[str]:
    """The commands of a shell block: lines that go on are joined; prompts, comments, output left out."""
    lines = text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [stripped for line in lines if (stripped := line.strip()) and not stripped.startswith("#")]


def hypocenter_commands(page: Path) -> list[str]:
    """Each command line of ours on a page: in its blocks, and in its text between backquotes."""
    text = page.read_text(encoding="utf-8")
    lines = [ours for block in blocks(page) for line in shell_lines(block) if (ours := our_part(line))]
    lines += re.findall(r"(?<!`)`(hypocenter [^`\n]+)`", FENCE.sub("", text))
    return [line for line in lines if line.split()[0] == "hypocenter" and can_be_split(line)]


def shell_lines(block: Block) -> list[str]:
    """The commands of a block: of a shell's, and of what a pod starts in YAML (`command: [sh, -c, "..."]`)."""
    if block.language in SHELL:
        return command_lines(block.text)
    if block.language not in ("yaml", "yml"):
        return []
    left, found = list(yaml.safe_load_all(block.text)), []
    while left:
        node = left.pop()
        left += node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        found += [node] if isinstance(node, str) and " " in node else []
    return found


def our_part(line: str) -> str | None:
    """What `srun`, `torchrun -m`, `kubectl exec ... --` or an assignment before it starts of ours; none if nothing."""
    found = re.search(r"(?:^|\s)(hypocenter [a-z].*)", line.partition(" #")[0])
    return found[1] if found and not re.search(r"\b(?:pip|git) ", line[: found.start(1)]) else None


def can_be_split(line: str) -> bool:
    """Whether its quotes are closed, so that it is one whole command."""
    try:
        shlex.split(line)
    except ValueError:
        return False
    return True


SHELL = ("bash", "sh", "console", "")
