"""view in a real browser: a real training is followed, the page turns to what broke, and everybody can read it."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asking import Asking, Training, training

from hypocenter.cli.commands.check import store
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.view.runs import name_of

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]
TESTS = Path(__file__).resolve().parents[1]
ACCESSIBILITY = (TESTS / "report" / "accessibility.js").read_text(encoding="utf-8")
PROGRAM = """
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
for line in sys.stdin:
    for _ in range(int(line)):
        x = torch.randn(16, 4)
        loss = model(x).square().mean()
        if step == 490:
            loss = loss + torch.log(-x.abs().sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
"""
Serve = Callable[..., Asking]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page, and what it should not have done."""

    def __init__(self, browser: sync_api.Browser, asking: Asking, rest: str = "", **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        origin = f"http://localhost:{asking.server.port}/"
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda one: self._note(one.url, origin))
        self.page.goto(f"{origin}{rest}?token={asking.server.token}")

    def _note(self, url: str, origin: str) -> None:
        if not url.startswith((origin, "data:")):
            self.complaints.append(f"asked for {url[:200]}")

    def shows(self, part: str, text: str) -> sync_api.Locator:
        found = self.page.locator(f'[data-part="{part}"]', has_text=text)
        found.wait_for(timeout=60_000)
        return found


def test_a_training_is_followed_until_it_breaks_and_a_second_run_is_compared(
    browser: sync_api.Browser, tmp_path: Path, serve: Serve
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    second = training(tmp_path / "runs" / "second")
    second.go(300)
    second.end()
    env = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    with subprocess.Popen(
        [sys.executable, "-m", "hypocenter", "run", "--out", "runs/first", "train.py"], cwd=tmp_path,
        env=env | {"PYTHONPATH": str(TESTS.parent / "src")}, text=True, bufsize=1,
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        assert job.stdin is not None
        (tmp_path / "runs").mkdir(exist_ok=True)
        opened = Opened(browser, serve(tmp_path / "runs"))
        job.stdin.write("200\n")
        opened.shows("list", "first").get_by_role("link", name="first").click()
        opened.shows("steps", "199")
        opened.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        job.stdin.write("250\n")
        opened.shows("steps", "449")
        assert opened.page.url.endswith(name_of((tmp_path / "runs" / "first").resolve()))

        job.stdin.write("50\n")
        opened.shows("finding", "out-of-domain")
        opened.page.wait_for_url("**#finding")
        assert opened.page.title().startswith("✗ HC10")
        turned = opened.page.evaluate("document.activeElement.id")
        opened.shows("steps", "not finite")
        job.stdin.close()
        job.wait(timeout=120)
    opened.shows("status", "finished")
    opened.page.get_by_role("link", name="Hypocenter").click()
    opened.page.get_by_label("baseline").select_option(label="second")
    opened.page.get_by_label("candidate").select_option(label="first")
    opened.page.get_by_role("button", name="compare").click()
    opened.shows("both", "candidate first")

    assert turned == "finding"
    assert opened.complaints == []
    opened.context.close()


@pytest.mark.night
def test_a_page_that_stays_open_does_not_grow_and_what_was_opened_stays_open(
    browser: sync_api.Browser, tmp_path: Path, serve: Serve
) -> None:
    run = training(tmp_path / "run")
    run.go(50)
    asking = serve(tmp_path, diagnoses=False)
    opened = Opened(browser, asking, f"run/{name_of(run.path.resolve())}")
    opened.shows("steps", "49")
    opened.page.locator("#run summary").click()
    opened.page.locator("#run summary").focus()
    count = "document.querySelectorAll('*').length"
    before = opened.page.evaluate(count)
    for _ in range(3):
        run.go(300)
        opened.shows("steps", f"{run.step - 1:,}")

    assert opened.page.evaluate(count) < before + 60
    assert opened.page.evaluate("document.getElementById('run').open && document.activeElement.tagName") == "SUMMARY"
    opened.context.close()


@pytest.mark.night
def test_it_says_that_the_server_is_gone_and_comes_back_without_a_reload(
    browser: sync_api.Browser, tmp_path: Path, serve: Serve
) -> None:
    run = training(tmp_path / "run")
    run.go(5)
    opened = Opened(browser, serve(tmp_path, diagnoses=False), f"run/{name_of(run.path.resolve())}")
    opened.shows("steps", "4")
    opened.page.route("**/state", lambda route: route.abort())
    opened.page.get_by_text("connection lost, trying again").wait_for(timeout=30_000)
    opened.page.unroute("**/state")
    run.go(1)

    opened.shows("steps", "5")
    opened.page.get_by_text("live", exact=True).wait_for(timeout=30_000)
    opened.context.close()


def test_without_scripts_a_page_is_whole(browser: sync_api.Browser, tmp_path: Path, serve: Serve) -> None:
    run = training(tmp_path / "run")
    run.go(30)
    asking = serve(tmp_path, diagnoses=False).enter()
    asking.part(run.path, "steps", "<td")
    opened = Opened(browser, asking, f"run/{name_of(run.path.resolve())}", java_script_enabled=False)

    assert opened.page.locator("svg.picture").count() == 2
    assert opened.page.locator("table.steps tbody tr").count() == 16
    opened.context.close()


def failed(path: Path) -> Training:
    run = training(path, ranks=4)
    run.go(40)
    run.go(3, loss=math.nan)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
def test_everybody_can_read_it(browser: sync_api.Browser, tmp_path: Path, serve: Serve, width: int, theme: str) -> None:
    one, two = failed(tmp_path / "runs" / "one"), training(tmp_path / "runs" / "two")
    two.go(60)
    two.end()
    for run in (one, two):
        store(run.path, diagnose(open_run(run.path)), sys.stderr)
    asking = serve(tmp_path / "runs", diagnoses=False)
    a, b = (name_of(run.path.resolve()) for run in (one, two))
    opened = Opened(browser, asking, viewport={"width": width, "height": 900}, color_scheme=theme)
    page = opened.page
    for rest, part, text in (
        ("", "list", "two"), (f"run/{a}", "finding", "HC"), (f"run/{b}", "finding", "healthy"),
        (f"compare/{b}/{a}", "both", "candidate"),
    ):  # fmt: skip
        page.goto(f"http://localhost:{asking.server.port}/{rest}")
        opened.shows(part, text)
        page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")

        assert page.evaluate(ACCESSIBILITY) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.context.close()
