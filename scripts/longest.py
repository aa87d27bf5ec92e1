"""Print the five longest files and functions below a folder, so that growth is seen, not forbidden."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def functions(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Length in lines and place of every function in the file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path}:{node.lineno} {node.name}"


def main(folder: str) -> None:
    """Read every Python file below the folder and print both lists, longest first."""
    texts = {path: path.read_text(encoding="utf-8") for path in Path(folder).rglob("*.py")}
    by_file = [(text.count("\n"), str(path)) for path, text in texts.items()]
    by_function = [found for path, text in texts.items() for found in functions(path, text)]
    for title, rows in (("files", by_file), ("functions", by_function)):
        print(f"== longest {title} of {len(rows)} (lines)")
        for n_lines, place in sorted(rows, reverse=True)[:5]:
            print(f"{n_lines:6} {place}")


if __name__ == "__main__":
    main(*sys.argv[1:])
