"""view: only whoever has the token, by a name of this machine, only to read, and only runs that were named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from asking import Asking, training

from hypocenter.view.runs import Runs, name_of
from hypocenter.view.serving import Server

Serve = Callable[..., Asking]


def test_without_the_token_nothing_is_shown_and_with_it_a_cookie_is_kept(tmp_path: Path, serve: Serve) -> None:
    training(tmp_path / "run").go(3)
    asking = serve(tmp_path)
    path = f"/run/{name_of((tmp_path / 'run').resolve())}"
    nobody = [asking.get(p).code for p in ("/", "/state", path, f"{path}/state", f"{path}/report", "/assets/live.js")]
    wrong = [
        asking.get(f"/?token={token}").code for token in ("", "x", asking.server.token[:-1], "%ff", "ä".encode().hex())
    ]
    guessed = asking.get("/", Cookie="hypocenter_view=x; a=b").code
    entered = asking.get(f"{path}?token={asking.server.token}")

    assert set(nobody) == {403}
    assert set(wrong) == {403}
    assert guessed == 403
    assert (entered.code, entered.headers["location"]) == (303, path)
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert "SameSite=Lax" in entered.headers["set-cookie"]
    assert asking.enter().get("/").code == 200


def test_the_token_is_never_sent_on_to_another_site(tmp_path: Path, serve: Serve) -> None:
    asking = serve(tmp_path)
    found = asking.get(f"//example.org/x?token={asking.server.token}&y=1")

    assert found.headers["location"] == "/example.org/x?y=1"


@pytest.mark.parametrize(
    "host", ["example.org", "localhost.example.org", "127.0.0.1.nip.io", "", "localhost:1:2", "::1"]
)
def test_another_host_is_refused(tmp_path: Path, serve: Serve, host: str) -> None:
    asking = serve(tmp_path).enter()

    assert asking.get("/", Host=host).code in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8765", "LOCALHOST"])
def test_a_tunnel_may_come_in_by_another_port(tmp_path: Path, serve: Serve, host: str) -> None:
    asking = serve(tmp_path).enter()

    assert asking.get("/", Host=host).code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_shows(tmp_path: Path, serve: Serve, method: str) -> None:
    asking = serve(tmp_path).enter()

    assert asking.get("/", method).code == 405


def test_no_address_leads_out_of_the_runs(tmp_path: Path, serve: Serve) -> None:
    training(tmp_path / "runs" / "one").go(3)
    outside = tmp_path / "secret"
    training(outside).go(3)
    (tmp_path / "runs" / "link").symlink_to(outside)
    (tmp_path / "runs" / "one" / "note.txt").write_text("secret words")
    asking = serve(tmp_path / "runs").enter()
    name = name_of((tmp_path / "runs" / "one").resolve())
    paths = [
        "/../secret", "/run/../../secret", "/run/..%2f..%2fsecret", f"/run/{name}/../../../secret/run.json",
        f"/run/{name}%2f..%2f..", f"/run/{name}/note.txt", f"/run/{name}/part/../note.txt",
        f"/run/{name}/part/note.txt",
        "/assets/..%2fserver.py", "/assets/../server.py", "/assets/%2e%2e/server.py", "//etc/passwd", "/run/%00",
        f"/run/{name_of(outside.resolve())}", f"/run/{outside}", "/run/one", "/compare?a=../../secret&b=" + name,
        f"/compare/{name}/..%2f..%2fsecret", f"/compare/{name}/{name_of(outside.resolve())}",
    ]  # fmt: skip

    answers = {path: asking.get(path) for path in paths}

    assert {answer.code for answer in answers.values()} == {404}
    assert list(Runs([tmp_path / "runs"]).by_name()) == [name]
    assert asking.get(f"/run/{name}").code == 200


def test_files_of_a_run_that_are_links_are_not_read(tmp_path: Path, serve: Serve) -> None:
    run, other = training(tmp_path / "runs" / "one"), training(tmp_path / "other")
    run.go(3)
    other.go(1, loss=123456.0)
    (tmp_path / "runs" / "one" / "rank-00001").symlink_to(tmp_path / "other" / "rank-00000")
    (tmp_path / "other" / "diagnosis.json").write_text('{"run": "other", "status": "healthy"}')
    (tmp_path / "runs" / "one" / "diagnosis.json").symlink_to(tmp_path / "other" / "diagnosis.json")
    asking = serve(tmp_path / "runs", diagnoses=False).enter()

    steps = asking.part(run.path, "steps", "<td")

    assert "123456" not in steps
    assert "ranks" not in asking.run(run.path, "/part/status").text
    assert "healthy" not in asking.run(run.path, "/part/finding").text


def test_what_a_run_says_is_text(tmp_path: Path, serve: Serve) -> None:
    path = tmp_path / "<script>alert(1)<"
    run = training(path)
    run.go(2)
    (path / "run.json").write_text(
        '{"format": 2, "name": "</title><script>alert(2)</script>", "command": ["<img src=x"]}'
    )
    asking = serve(tmp_path).enter()
    asking.part(path, "steps", "<td")

    pages = [asking.get("/part/list").text, asking.run(path).text, asking.run(path, "/part/facts").text]

    assert not any("<script>alert" in page or "<img src=x" in page for page in pages)
    assert "script-src 'self'" in asking.run(path).headers["content-security-policy"]


def test_it_listens_to_this_machine_only(tmp_path: Path) -> None:
    server = Server([tmp_path], port=0)

    assert server._socket.getsockname()[0] == "127.0.0.1"
    assert len(server.token) >= 32
    server._socket.close()
