"""The page of `explain` on screens of any width."""

from __future__ import annotations

import pytest

from hypocenter.manual import Manual
from hypocenter.report import manuals
from hypocenter.report.screen import Screen

PAGE = Manual(
    message="A collective gives a wrong result.",
    sections=(
        (
            "What it means",
            "A card, a link or a library computes wrong sums or loses parts. In training every replica may get the\n"
            "same wrong gradient, which nobody sees.\n"
            "Recommended: 1e-08.",
        ),
        ("What to do", "Look at the host:\n`df -h /dev/shm`\n`# docker run --shm-size=16g`"),
    ),
)


def test_prose_is_broken_anew_and_commands_keep_their_lines() -> None:
    text = manuals.render("check", "comm.all-reduce", PAGE, Screen(width=60))

    assert text.splitlines() == [
        "comm.all-reduce (check): A collective gives a wrong result.",
        "",
        "What it means",
        "  A card, a link or a library computes wrong sums or loses",
        "  parts. In training every replica may get the same wrong",
        "  gradient, which nobody sees.",
        "  Recommended: 1e-08.",
        "",
        "What to do",
        "  Look at the host:",
        "  `df -h /dev/shm`",
        "  `# docker run --shm-size=16g`",
        "",
        "all there is: hypocenter list",
    ]


@pytest.mark.parametrize("width", [70, 100])
def test_no_page_is_wider_than_the_screen(width: int) -> None:
    for kind, pages in manuals.PAGES.items():
        for name, page in pages().items():
            text = manuals.render(kind, name, page, Screen(width=width))

            assert " ".join(page.message.split()) in " ".join(text.split()), name
            prose = [line for line in text.splitlines()[1:] if not line.startswith("  `")]
            assert [line for line in prose if len(line) > width and len(max(line.split(), key=len)) < width - 4] == []
