"""What the seed documents do by hand, by the name that docs/from-the-seeds.md gives it."""

import torch
from safetensors.torch import load_file
from torch import nn

import hypocenter
from hypocenter.cli import main
from hypocenter.record.reader import open_run


def train(n_steps=4, clip=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_steps):
        x = torch.randn(2, 4, requires_grad=True)
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    return model


def test_inputs_outputs_and_their_gradients_of_a_named_module_are_saved(tmp_path):
    with hypocenter.watch(level="tensors", sites=("2",), schedule="1", out=tmp_path / "run"):
        train()

    (file,) = (path for path in (tmp_path / "run").rglob("*.safetensors") if not path.name.startswith("update-"))
    saved = load_file(str(file))
    assert {"in[0]", "out[0]", "grad_in[0]", "grad_out[0]", "weight", "weight.grad"} <= set(saved)
    assert torch.allclose(saved["out[0]"], saved["in[0]"] @ saved["weight"].T + saved["bias"])
    assert torch.allclose(saved["grad_in[0]"], saved["grad_out[0]"] @ saved["weight"])
    assert "step-000001" in str(file)


def test_local_norms_carry_the_users_parameter_names(tmp_path):
    with hypocenter.watch(out=tmp_path / "run"):
        model = train()

    rows = [r for r in open_run(tmp_path / "run").readings(steps=[3]) if r.phase == "grad" and r.port == "grad"]
    norms = {r.site: r.summary.sumsq**0.5 for r in rows}
    assert set(norms) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert abs(norms[name] - float(parameter.grad.norm())) <= 1e-5 * float(parameter.grad.norm()) + 1e-12


def test_the_grad_norm_is_the_one_before_clipping(tmp_path):
    with hypocenter.watch(out=tmp_path / "clipped"):
        train(n_steps=1, clip=True)
    with hypocenter.watch(out=tmp_path / "plain"):
        train(n_steps=1)

    (clipped,), (plain,) = (
        [s.grad_norm for _, s in open_run(tmp_path / which).step_records()] for which in ("clipped", "plain")
    )
    assert clipped == plain


def test_modules_give_abs_min_and_abs_max_of_inputs_outputs_and_gradients(tmp_path):
    with hypocenter.watch(level="modules", out=tmp_path / "run"):
        train()

    ports = {r.port for r in open_run(tmp_path / "run").readings() if r.site == "2"}
    assert {"in[0]", "out[0]", "grad_in[0]", "grad_out[0]"} <= ports


def test_the_frames_of_a_replay_show_weights_inputs_and_outputs(tmp_path, capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=tmp_path / "run"):
        for step in range(3):
            if step == 2:
                with torch.no_grad():
                    model[2].weight.fill_(3e38)
            loss = (model(torch.ones(2, 4) * 9) * 1.0).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert main(["show", str(tmp_path / "run"), "--frames", "2"]) == 0

    lines = capsys.readouterr().out.splitlines()
    start = lines.index("2  Linear  <-- first bad")
    assert lines[start + 1].split()[:3] == ["3.00e+38", "3.00e+38", "weight"]
    assert [line.split()[2] for line in lines[start + 2 : start + 5]] == ["bias", "in[0]", "out[0]"]
