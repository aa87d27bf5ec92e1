"""Precedence of options, and what a typo is told."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, asdict, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter import config as module
from hypocenter.config import Config, from_json, resolve, to_json, to_variable
from hypocenter.errors import ConfigError
from hypocenter.nouns import LEVELS

NAMES = [field.name for field in fields(Config)]
SOURCES = ("file", "environment", "flags", "code")

schedules = st.one_of(
    st.just("never"), st.integers(1, 10**6).map("every={}".format), st.lists(st.integers(0, 999), min_size=1).map(
        lambda steps: ",".join(map(str, steps))
    ),
)  # fmt: skip
names = st.text(
    st.characters(codec="utf-8", exclude_characters=",", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1
)
texts = st.lists(names, max_size=3).map(tuple)
configs = st.builds(
    Config,
    level=st.sampled_from(LEVELS),
    schedule=schedules,
    param_schedule=schedules,
    sites=texts,
    exclude=texts,
    trace_batches=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    stop_after_batch=st.none() | st.integers(0, 10**9),
    frames=st.integers(0, 100),
    sketch=st.booleans(),
    histogram=st.sampled_from(get_args(get_type_hints(Config)["histogram"])),
    on_finding=st.sampled_from(get_args(get_type_hints(Config)["on_finding"])),
    replay=st.booleans(),
    max_replays=st.integers(0, 99),
    keep_mb=st.integers(0, 10**6),
    bundle_mb=st.integers(0, 10**6),
    compiled_backward=st.booleans(),
    out=st.none() | names,
    force=st.booleans(),
    sinks=texts,
    plugins=texts,
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(f"HYPOCENTER_{name.upper()}", raising=False)


# round trips


@settings(deadline=None)
@given(configs)
def test_json_gives_back_the_same_config(config: Config) -> None:
    assert from_json(to_json(config)) == config
    assert "\n" not in to_json(config)
    assert from_json(to_variable(config)) == config
    assert re.fullmatch(r"[A-Za-z0-9%:,./_-]+", to_variable(config))  # no shell changes any of it, quoted or not


@settings(deadline=None)
@given(configs)
def test_flags_give_back_the_same_config(config: Config) -> None:
    assert resolve(flags=asdict(config), cwd=Path("/nowhere")) == config


@settings(deadline=None)
@given(configs)
def test_environment_gives_back_the_same_config(config: Config) -> None:
    environ = {
        f"HYPOCENTER_{name.upper()}": ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in asdict(config).items()
        if value not in (None, ())
    }
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environ.items():
            patch.setenv(key, value)

        assert resolve(cwd=Path("/nowhere")) == config


# precedence


@settings(deadline=None)
@given(st.sets(st.sampled_from(SOURCES)))
def test_the_later_source_wins(given_by: set[str]) -> None:
    frames = {source: index + 100 for index, source in enumerate(SOURCES)}
    with pytest.MonkeyPatch.context() as patch:
        folder = Path(patch_folder(patch, frames["file"] if "file" in given_by else None))
        if "environment" in given_by:
            patch.setenv("HYPOCENTER_FRAMES", str(frames["environment"]))
        flags = {"frames": frames["flags"]} if "flags" in given_by else {}
        code = {"frames": frames["code"]} if "code" in given_by else {}

        config = resolve(flags=flags, code=code, cwd=folder)

    last = max((SOURCES.index(source) for source in given_by), default=None)
    assert config.frames == (Config().frames if last is None else frames[SOURCES[last]])


def patch_folder(patch: pytest.MonkeyPatch, frames: int | None) -> str:
    """A path at which an option file is, as far as the config can tell, or none."""
    folder = Path("/nowhere/at/all")
    if frames is not None:
        patch.setattr(module, "_from_file", lambda cwd: (str(cwd), {"frames": frames}))
    return str(folder)


def test_own_file_comes_before_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.hypocenter]\nframes = 1\nlevel = 'ops'\n")
    assert resolve(cwd=tmp_path).frames == 1

    (tmp_path / "hypocenter.toml").write_text("frames = 2\n")

    assert (resolve(cwd=tmp_path).frames, resolve(cwd=tmp_path).level) == (2, "sentinel")


def test_options_of_several_sources_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hypocenter.toml").write_text("sites = ['a']\ntrace-batches = [1, 3]\n")
    monkeypatch.setenv("HYPOCENTER_LEVEL", "modules")

    config = resolve(flags={"frames": "3"}, code={"sketch": True}, cwd=tmp_path)

    assert config == Config(sites=("a",), trace_batches=(1, 3), level="modules", frames=3, sketch=True)


def test_what_run_hands_to_its_children_is_no_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RUN", "CONFIG", "TRACEBACK"):
        monkeypatch.setenv(f"HYPOCENTER_{name}", "anything")

    assert resolve(cwd=tmp_path) == Config()


def test_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().level = "ops"  # type: ignore[misc]


# mistakes


@settings(deadline=None)
@given(st.data(), st.sampled_from(NAMES))
def test_one_wrong_letter_names_the_right_option(data: Any, name: str) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:at] + "q" + name[at + 1 :]

    with pytest.raises(ConfigError) as caught:
        resolve(flags={wrong: "1"}, cwd=Path("/nowhere"))

    assert caught.value.what == f"unknown option {wrong!r}"
    assert caught.value.fix.startswith("did you mean '")
    if len(name) > 3:
        assert name in caught.value.fix


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"level": "modul"}, "did you mean 'modules'? it is one of sentinel, modules, ops, tensors"),
        ({"on_finding": "zzz"}, "it is one of continue, skip, stop"),
        ({"frames": "many"}, "its type is a whole number"),
        ({"impose_lr": "abc"}, "its type is a number"),
        ({"impose_lr": "nan"}, "give 0 or more; 0: no parameter changes"),
        ({"impose_lr": "inf"}, "give 0 or more; 0: no parameter changes"),
        ({"impose_lr": "-1"}, "give 0 or more; 0: no parameter changes"),
        ({"stop_after_step": "-1"}, "give 0 or more; 0: end after the first step"),
        ({"stop_after_batch": "-1"}, "give 0 or more; 0: end after the first micro-batch"),
        ({"frames": -1}, "use 0 to switch it off"),
        ({"trace_batches": "1,x"}, "its type is tuple[int, ...]"),
        ({"schedule": "evry=3"}, "write every=100"),
        ({"param_schedule": "5-"}, "write every=100"),
        ({"zzzzzz": 1}, "see `hypocenter run --help` for all options"),
    ],
)
def test_wrong_value_says_what_is_right(flags: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(flags=flags, cwd=tmp_path)

    assert says in caught.value.fix


def test_plug_in_that_is_not_there_is_refused_and_one_that_is_gets_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="a plug-in is not there"):
        resolve(flags={"plugins": ("yours.py",)})
    found = resolve(flags={"plugins": ("mine.py", "package.rules")})

    assert found.plugins == (str(tmp_path / "mine.py"), "package.rules")


@pytest.mark.parametrize("source", SOURCES)
def test_mistake_names_its_source(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "file":
        (tmp_path / "hypocenter.toml").write_text("levle = 'ops'\n")
    if source == "environment":
        monkeypatch.setenv("HYPOCENTER_LEVLE", "ops")
    typo = {"levle": "ops"}

    with pytest.raises(ConfigError) as caught:
        resolve(flags=typo if source == "flags" else {}, code=typo if source == "code" else {}, cwd=tmp_path)

    wheres = {"file": str(tmp_path / "hypocenter.toml"), "flags": "the command line"}
    assert caught.value.where == wheres.get(source, source if source == "code" else f"the {source}")


def test_broken_option_file_is_an_error_and_broken_pyproject_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[[[")
    assert resolve(cwd=tmp_path) == Config()

    (tmp_path / "hypocenter.toml").write_text("[[[")

    with pytest.raises(ConfigError, match="the option file cannot be read"):
        resolve(cwd=tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"levle": 1}', '{"frames": "x"}', "\x00"])
def test_bad_json_from_the_environment_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        from_json(text)


def test_json_is_plain() -> None:
    assert json.loads(to_json(Config(sites=("a", "b")))) == json.loads(json.dumps(asdict(Config(sites=("a", "b")))))


@pytest.mark.parametrize(
    ("keep", "n_ranks", "n_bytes"),
    [(None, 1, 1 << 30), (None, 186, 1 << 30), (None, 10_000, 20_000_000), (None, 10**6, 1 << 20),
     ("64MiB", 10_000, 64 << 20)],
)  # fmt: skip
def test_all_ranks_of_a_job_keep_no_more_than_fits(keep: str | None, n_ranks: int, n_bytes: int):
    assert module.bytes_kept(keep, n_ranks) == n_bytes
