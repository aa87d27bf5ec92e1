"""Write the pages of docs/ that come from the code: rules, causes, fits, items and so on. `--check`: is any stale?"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NOTICE = "<!-- written by ./scripts/docs from the code: do not edit -->"
ABOUT_OPTIONS = """\
An option is set in `hypocenter.toml` or `[tool.hypocenter]` of `pyproject.toml`, by `HYPOCENTER_<NAME>` in the
environment, as a flag of `hypocenter run`, or as an argument of `hypocenter.watch`; the later wins. A name that does
not exist is an error that tells the nearest one.
"""
DEMO_START, DEMO_END = "<!-- demo output, written by scripts/docs -->\n```text\n", "```\n<!-- end of demo output -->"


def options() -> str:
    """The option tree with types, defaults and the comments beside them."""
    from hypocenter import config

    head = "| option | type | default | |\n| --- | --- | --- | --- |"
    rows = "\n".join(_option_rows(inspect.getsource(config.Config)))
    return f"# Options\n\n{NOTICE}\n\n{ABOUT_OPTIONS}\n{head}\n{rows}\n"


def _option_rows(source: str) -> Iterator[str]:
    text = source.splitlines()
    (declared,) = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef)
    for node in declared.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = text[node.lineno - 1].partition("  # ")[2]
            kind = ast.unparse(node.annotation).replace("|", "\\|")
            default = ast.unparse(node.value) if node.value else ""
            yield f"| `{node.target.id}` | {kind} | `{default}` | {comment} |"


def commands() -> str:
    """`--help` of every command."""
    import click

    from hypocenter.cli import hypocenter as cli

    context = click.Context(
        cli, info_name="hypocenter", max_content_width=100, terminal_width=100, **cli.context_settings
    )
    parts = ["# Commands", NOTICE, _help(cli, context)]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, max_content_width=100, terminal_width=100)
        parts += [f"## {name}", _help(command, inner)]
    return "\n\n".join(parts) + "\n"


def _help(command: object, context: object) -> str:
    return f"```text\n{command.get_help(context).rstrip()}\n```"  # type: ignore[attr-defined]


def rules() -> str:
    """Which rule can fire where, and the manual pages of all."""
    from hypocenter.detect.engine import FRAMEWORKS
    from hypocenter.detect.engine import rules as registered
    from hypocenter.report import manuals

    names = {"torch": "torch", "mindspore": "MindSpore (PyNative)"}
    lines = ["| Rule | " + " | ".join(names[each] for each in FRAMEWORKS) + " |", "|---" * (1 + len(FRAMEWORKS)) + "|"]
    for code, entry in sorted(registered().items()):
        cells = [f"no: {entry.not_in[each]}" if each in entry.not_in else "yes" for each in FRAMEWORKS]
        lines.append(f"| [{code}](#{code.lower()}) {entry.manual.message.rstrip('.')} | " + " | ".join(cells) + " |")
    intro = "A rule looks at rows and states one fact under a code. Which rule can fire on a run of which framework:"
    after = "Of a compiled graph of MindSpore there is a loss, a rate and a scale, and at level `modules` its dump."
    pages = manuals.rules()
    of_ranks = sorted(pages.keys() - registered().keys())
    lines += ["", after, "", "Over the ranks of a job, in any framework:", ""]
    lines += [f"- [{code}](#{code.lower()}) {pages[code].message}" for code in of_ranks]
    return _manual_pages("Rules", "\n".join([intro, "", *lines]), pages)


def causes() -> str:
    """The manual pages of all causes."""
    from hypocenter.diagnose.verdicts import causes as registered

    pages = {name: cause.manual for name, cause in registered().items()}
    return _manual_pages("Causes", "The closed vocabulary. One that fits none is `unknown`, never a guess.", pages)


def fits() -> str:
    """The manual pages of all fits."""
    from hypocenter.compare.fitting import fits as registered
    from hypocenter.manual import parse

    pages = {name: parse(sys.modules[entry.look.__module__].__doc__) for name, entry in registered().items()}
    about = (
        "What may be the cause of the first difference between two runs (`hypocenter diff`). A fit is taken only if it "
        "explains more than 90 % of the difference, or is a recorded fact of that very place; when two explain it "
        "equally well both are said."
    )
    return _manual_pages("Fits", about, pages)


def items() -> str:
    """The manual pages of all items of the checklist, under the headings of their groups."""
    from hypocenter.checklist.items.item import load, page

    found = load()
    about = "What `hypocenter checklist` compares. An item is a paragraph of a TOML file; `--items FILE` adds your own."
    parts = [f"# Items of the checklist\n\n{NOTICE}\n\n{about}\n"]
    for group, heading in found.groups.items():
        inside = [item for item in found.by_key.values() if item.group == group]
        parts += [f"# {heading[:1].upper()}{heading[1:]}\n", *(page(item).markdown(item.key) for item in inside)]
    return "\n".join(parts)


def checks() -> str:
    """The manual pages of the doctor's checks, and the settings that change numbers as a table."""
    from hypocenter.doctor.settings import settings
    from hypocenter.report import manuals

    about = (
        "What [`hypocenter doctor`](doctor.md) looks at, in that order. `hypocenter explain CODE` shows the same page; "
        "the settings are at the end."
    )
    head = "| setting | changes | what | default | when aligning |\n| --- | --- | --- | --- | --- |"
    rows = [
        f"| `{row.name}` | {row.matters} | {row.changes} | {row.default} | {' or '.join(row.aligning)} |"
        for row in settings()
    ]
    table = "\n".join(["## Settings that change numbers", "", head, *rows])
    return f"{_manual_pages('Checks', about, manuals.checks())}\n{table}\n"


def _manual_pages(title: str, about: str, pages: object) -> str:
    return "\n".join([f"# {title}\n\n{NOTICE}\n\n{about}\n", *(page.markdown(name) for name, page in pages.items())])  # type: ignore[attr-defined]


def measures() -> str:
    """The manual pages of the measures of health."""
    from hypocenter.report import manuals

    about = "What [`hypocenter health`](health.md) measures. Nothing here is an error by itself."
    return _manual_pages("Measures of health", about, manuals.measures())


def api() -> str:
    """What a program can import: signatures and docstrings of the public names."""
    import hypocenter
    from hypocenter import testing

    about = (
        "What a program or a notebook can call. Everything is imported when it is first used; `import hypocenter` "
        "alone imports no training framework. For reading recordings in Python see [the run directory](format.md)."
    )
    named = [("hypocenter", name, getattr(hypocenter, name)) for name in hypocenter.__all__ if name[0] != "_"]
    named.append(("hypocenter.testing", "check_relations", testing.check_relations))
    parts = [f"# Python\n\n{NOTICE}\n\n{about}"]
    for where, name, thing in sorted(named, key=lambda each: (each[0], each[1].lower())):
        parts.append(
            f"## {where}.{name}\n\n```python\n{_signature(name, thing)}\n```\n\n{_prose(inspect.getdoc(thing) or '')}"
        )
    return "\n\n".join(parts) + "\n"


def _signature(name: str, thing: object) -> str:
    """The stub of a function or class, a parameter a line where there are several."""
    shown = inspect.signature(thing).replace(return_annotation=inspect.Signature.empty)  # type: ignore[arg-type]
    params = [re.sub(r": '([^']*)'", r": \1", str(each)).replace("'", '"') for each in shown.parameters.values()]
    kinds = [each.kind for each in shown.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        params.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    one = f"def {name}({', '.join(params)}): ..."
    return one if len(one) < 90 else f"def {name}(\n    " + ",\n    ".join(params) + ",\n): ..."


def _prose(docstring: str) -> str:
    """A docstring as Markdown: headings such as `Args:` become bold, what stands below them a list."""
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Yields|Example|Examples):", line):
            inside = line[:-1] not in ("Example", "Examples")
            lines.append(f"**{line[:-1]}**\n")
        elif inside and (found := re.match(r"    (\S[^:]*): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif inside and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            inside = inside and not line.strip()
            lines.append(line)
    return "\n".join(lines).rstrip()


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options,
    "cli.md": commands,
    "rules.md": rules,
    "causes.md": causes,
    "fits.md": fits,
    "items.md": items,
    "measures.md": measures,
    "checks.md": checks,
    "api.md": api,
}


def stale() -> list[str]:
    """Names of the pages whose text on disk is not what the code says."""
    on_disk = {name: (DOCS / name).read_text(encoding="utf-8") if (DOCS / name).exists() else "" for name in PAGES}
    return [name for name, render in PAGES.items() if on_disk[name] != render()]


def put_demo_into_readme(recording: Path) -> None:
    """Replace the terminal example of the README by what `hypocenter check` prints about the demo's recording."""
    command = [sys.executable, "-m", "hypocenter", "check", recording.name]
    shown = subprocess.run(command, cwd=recording.parent, capture_output=True, text=True, check=False).stdout
    shown = re.sub(r"\S*/site-packages/", "", shown)
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(DEMO_START)
    after = rest.partition(DEMO_END)[2]
    readme.write_text(f"{before}{DEMO_START}{shown.rstrip()}\n{DEMO_END}{after}", encoding="utf-8")


def main() -> int:
    """Write the pages (and the README's example, if the demo has run), or with --check report what is stale."""
    if "--check" in sys.argv[1:]:
        for name in (old := stale()):
            print(f"stale: docs/{name} (run ./scripts/docs)")
        return 1 if old else 0
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
    if (recording := ROOT / ".demo").is_dir():
        put_demo_into_readme(recording)
    return 0


if __name__ == "__main__":
    sys.exit(main())
