"""What every page is made of: files of ours put in whole, a policy that forbids all else, data that stays data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

import jinja2
from markupsafe import Markup, escape

from hypocenter.report import wording


@cache
def file_text(package: str, name: str) -> str:
    """Return the text of a file of our packages."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


@cache
def shell(package: str, name: str) -> jinja2.Template:
    """Return a template that escapes whatever is not marked as markup."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        loader=jinja2.FunctionLoader(lambda part: file_text(__package__ or "", part)),
    )  # fmt: skip
    tests: dict[str, Any] = environment.tests
    tests["bad_chip"] = wording.is_bad_chip
    filters: dict[str, Any] = environment.filters
    filters["groupby_run"], filters["rjust"], filters["breakable"] = _runs, str.rjust, _breakable
    return environment.from_string(file_text(package, name))


def _breakable(name: str) -> Markup:
    """Return a name with possible line breaks after its dots and slashes, for narrow columns."""
    return Markup(re.sub(r"([./]+)", r"\1<wbr>", str(escape(name))))


def _runs(items: Sequence[Any], name: str) -> list[list[Any]]:
    """Group neighbours that have the same value of an attribute."""
    return [list(group) for _, group in groupby(items, key=lambda item: getattr(item, name))]


def policy(styles: str, scripts: Sequence[str]) -> str:
    """Return a content policy by which nothing is loaded and only these scripts and styles may run."""
    allowed = " ".join(map(_hash, scripts))
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(styles)}; base-uri 'none'; form-action 'none'"


def embedded(data: dict[str, Any]) -> Markup:
    """Return JSON that cannot end the script element in which it stands."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
