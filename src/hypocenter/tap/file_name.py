"""A site as the name of a file."""

from __future__ import annotations

import re

ROOT_FILE = "(root)"  # the outermost module's site has no name


def file_name(site: str) -> str:
    """Return the site as a file's name: characters that a file system may refuse are replaced."""
    return re.sub(r"[^\w.#()\[\]-]", "_", site)[:200] or ROOT_FILE
