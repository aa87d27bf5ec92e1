"""An answer as one offline page without scripts."""

from __future__ import annotations

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.report import answer
from hypocenter.report import page as report_page
from hypocenter.report.answer.outline import Outline
from hypocenter.report.page.document import file_text, policy, shell

_ROWS = 1000  # of a table, and of a list; all are in --json
_CARDS = {"notice": "healthy", "warning": "cannot-tell", "error": "error"}


def render(found: Outline) -> str:
    """The page as text. Nothing is loaded, and nothing runs."""
    styles = file_text(report_page.__name__, "style.css")
    return shell(answer.__name__, "shell.html.j2").render(
        found=found, card=_CARDS[found.level], most=_ROWS, version=__version__, style=Markup(styles),
        policy=policy(styles, []),
    )  # fmt: skip
