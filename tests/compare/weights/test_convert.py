"""Conversions between namings: bit-exact there and back, and the networks that load them give the same logits."""

from __future__ import annotations

import pytest
import torch
from networks import megatron_gpt, mindformers_llama, torchtitan_llama
from safetensors.torch import load_file

from hypocenter.cli import main

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SIZES = {
    "vocab_size": 64, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module", params=["Llama", "Qwen2"])
def hf(request, tmp_path_factory):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**SIZES)
    config.head_dim = 12
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("hf")
    model.save_pretrained(folder, max_shard_size="60KB")
    return config, model, folder


def loaded(folder):
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def bits(state):
    return {name: value.contiguous().view(torch.int32) for name, value in state.items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(bits(a)[name], bits(b)[name]) for name in a)


def test_there_and_back_to_the_bit_and_the_same_logits(hf, tmp_path):
    config, model, folder = hf
    out, back = tmp_path / "megatron", tmp_path / "back"

    assert main(["weights", "convert", str(folder), "--naming", "megatron", "-o", str(out)]) == 0
    again = ["weights", "convert", str(out), "--naming", "hf", "-o", str(back), "--heads", "4", "--groups", "2"]
    assert main(again) == 0

    assert equal(loaded(out), megatron_gpt.converted(model.state_dict(), config))
    assert equal(loaded(back), dict(model.state_dict()))
    network = megatron_gpt.GPTModel(config)
    network.load_state_dict(loaded(out))
    ids = torch.arange(12)[None] % 64
    with torch.no_grad():
        torch.testing.assert_close(network(ids, torch.arange(12)[None], None), model(ids).logits)


@pytest.mark.parametrize(("naming", "network"), [("mindformers", mindformers_llama), ("torchtitan", torchtitan_llama)])
def test_other_namings_there_and_back(hf, tmp_path, naming, network):
    config, model, folder = hf

    assert main(["weights", "convert", str(folder), "--naming", naming, "-o", str(tmp_path / "there")]) == 0
    assert main(["weights", "convert", str(tmp_path / "there"), "--naming", "hf", "-o", str(tmp_path / "back")]) == 0

    assert equal(loaded(tmp_path / "back"), dict(model.state_dict()))
    if naming == "torchtitan":
        assert equal(loaded(tmp_path / "there"), network.converted(model.state_dict(), config))


@pytest.mark.parametrize(
    ("convert", "options"),
    [
        (megatron_gpt.converted, {"fused_norm": True}),
        (megatron_gpt.converted, {"padding": 64}),
        (mindformers_llama.converted, {}),
        (mindformers_llama.converted, {"concatenated": True}),
    ],
)
def test_like_another_checkpoint(hf, tmp_path, convert, options):
    config, model, folder = hf
    wanted = {name: value.contiguous() for name, value in convert(model.state_dict(), config, **options).items()}
    torch.save(wanted, tmp_path / "like.pt")

    argv = ["weights", "convert", str(folder), "--like", str(tmp_path / "like.pt"), "-o", str(tmp_path / "out")]
    assert main([*argv, "--max-shard-size", "100KB"]) == 0

    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert equal(loaded(tmp_path / "out"), wanted)
    assert main(["weights", "diff", str(tmp_path / "like.pt"), str(tmp_path / "out")]) == 0


def test_a_cast(hf, tmp_path):
    _, model, folder = hf
    out = tmp_path / "half.safetensors"

    assert main(["weights", "convert", str(folder), "--naming", "hf", "-o", str(out), "--dtype", "bfloat16"]) == 0

    half = load_file(out)
    assert all(torch.equal(half[name], value.bfloat16()) for name, value in model.state_dict().items())
    assert main(["weights", "diff", str(folder), str(out)]) == 0


def test_what_cannot_be_converted_is_said_and_nothing_is_written(hf, tmp_path, capsys):
    _, model, folder = hf
    state = {name: value for name, value in model.state_dict().items() if "norm" not in name}
    torch.save(state, tmp_path / "less.pt")
    torch.save({**model.state_dict(), "model.odd.weight": torch.ones(3)}, tmp_path / "more.pt")

    cases = [
        [str(tmp_path / "less.pt"), "--like", str(folder)],
        [str(folder), "--like", str(tmp_path / "less.pt")],
        [str(tmp_path / "more.pt"), "--naming", "megatron"],
        [str(folder), "--naming", "megatron", "--like", str(folder)],
        [str(folder), "--naming", "hf", "--max-shard-size", "many"],
    ]

    for case in cases:
        assert main(["weights", "convert", *case, "-o", str(tmp_path / "out")]) in (2, 4)
        assert "error[" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_without_the_number_of_groups_nothing_is_guessed(hf, tmp_path, capsys):
    _, model, _ = hf
    torch.save(model.state_dict(), tmp_path / "bare.pt")

    code = main(["weights", "convert", str(tmp_path / "bare.pt"), "--naming", "megatron", "-o", str(tmp_path / "out")])

    assert code == 4
    assert "--groups N" in capsys.readouterr().err


def test_a_drafted_map_pairs_the_same(hf, tmp_path):
    config, model, folder = hf
    torch.save(megatron_gpt.converted(model.state_dict(), config), tmp_path / "b.pt")
    sides, file = [str(folder), str(tmp_path / "b.pt")], str(tmp_path / "map.toml")

    assert main(["weights", "map", *sides, "-o", file]) == 0

    assert main(["weights", "diff", *sides, "--map", file]) == 0
    assert main(["weights", "map", *sides, "-o", file]) == 2
