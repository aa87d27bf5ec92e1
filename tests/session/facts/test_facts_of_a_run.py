import functools

import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.record.reader import open_run


class Config:
    def __init__(self):
        self.rms_norm_eps, self.hidden_act = 1e-6, "silu"
        self.rope_parameters = {"rope_theta": 10000.0}
        self.architectures = ["Net"]


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.q_proj = nn.Linear(8, 8, bias=False)
        self.num_heads, self.scaling, self.is_causal = 2, 0.5, True
        self.act = functional.gelu
        self.tanh = functools.partial(functional.gelu, approximate="tanh")

    @property
    def trap(self):
        raise AssertionError("a property of the user's was called")

    def forward(self, x):
        return self.act(self.q_proj(x)) * self.scaling


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.attention = Attention(self.config)
        self.norm = nn.LayerNorm(8, eps=1e-3)
        self.drop = nn.Dropout(0.25)
        self.odd = object()
        self.limit = float("inf")
        self.register_buffer("mask", torch.ones(3))
        self.norm.weight.requires_grad_(False)

    def forward(self, x):
        return self.drop(self.norm(self.attention(x))).mean()


def train(model, *optimizers):
    for _ in range(2):
        model(torch.randn(4, 8)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def recorded(folder, model, *optimizers, **options):
    with hypocenter.watch(out=folder, **options):
        train(model, *optimizers)
    return open_run(folder).facts(0)


def test_what_is_set_on_modules_is_written_under_the_users_names(tmp_path):
    model = Net()

    facts = recorded(tmp_path / "run", model, torch.optim.SGD(model.parameters(), lr=0.1))

    modules = {module.path: module for module in facts.modules}
    attention = modules["attention"]
    assert attention.kind == "Attention"
    assert attention.attributes == {"num_heads": 2, "scaling": 0.5, "is_causal": True}
    assert attention.functions == {
        "act": "torch.nn.functional.gelu",
        "tanh": "torch.nn.functional.gelu(approximate=tanh)",
    }
    line = Attention.forward.__code__.co_firstlineno
    assert attention.where == f"test_facts_of_a_run.py:{line}"
    assert modules["attention.q_proj"].attributes == {"in_features": 8, "out_features": 8, "bias": None}
    assert modules["norm"].attributes == {"normalized_shape": [8], "eps": 1e-3, "elementwise_affine": True}
    assert modules["drop"].attributes == {"p": 0.25, "inplace": False}
    weight = modules["norm"].parameters["weight"]
    assert (weight.shape, weight.dtype, weight.trained) == ((8,), "float32", False)
    assert modules[""].buffers["mask"].shape == (3,)
    assert modules[""].attributes["limit"] == "inf"


def test_a_config_is_written_once_at_the_outermost_module_that_holds_it(tmp_path):
    model = Net()

    facts = recorded(tmp_path / "run", model, torch.optim.SGD(model.parameters(), lr=0.1))

    given = {key: value for key, value in facts.modules[0].attributes.items() if key.startswith("config.")}
    assert given == {
        "config.rms_norm_eps": 1e-6,
        "config.hidden_act": "silu",
        "config.rope_parameters.rope_theta": 10000.0,
    }
    assert not any(key.startswith("config") for m in facts.modules[1:] for key in m.attributes)


def test_groups_of_every_optimizer_name_their_parameters(tmp_path):
    model = Net()
    norms, others = [model.norm.bias], [model.attention.q_proj.weight]
    adam = torch.optim.AdamW([{"params": norms, "weight_decay": 0.0}, {"params": others}], lr=1e-3, eps=1e-6)
    stranger = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)

    facts = recorded(tmp_path / "run", model, adam, stranger)

    first, second = facts.optimizers
    assert (first.kind, second.kind) == ("AdamW", "SGD")
    assert [group.parameters for group in first.groups] == [("norm.bias",), ("attention.q_proj.weight",)]
    assert [group.options["weight_decay"] for group in first.groups] == [0.0, 0.01]
    assert first.groups[0].options["betas"] == [0.9, 0.999]
    assert second.groups[0].parameters == ("param_groups[0].params[0]",)


def test_settings_say_under_which_precision_the_model_was_called(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with hypocenter.watch(out=tmp_path / "run"):
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(4, 8))
            loss.backward()
        optimizer.step()

    found = open_run(tmp_path / "run").facts(0).settings
    assert (found["autocast"], found["autocast_device"]) == ("bfloat16", "cpu")
    assert found["accumulation_steps"] == 2
    assert found["num_threads"] == torch.get_num_threads()
    assert found["sdpa_math"] is torch.backends.cuda.math_sdp_enabled()
    assert found["world_size"] == 1


def test_wrappers_are_left_out_of_paths(tmp_path):
    model = nn.DataParallel(Net())

    facts = recorded(tmp_path / "run", model, torch.optim.SGD(model.parameters(), lr=0.1))

    paths = [module.path for module in facts.modules]
    assert paths == [name for name, _ in model.module.named_modules()]
    assert facts.modules[0].kind == "Net"


def test_training_goes_on_bit_for_bit_when_facts_cannot_be_written(tmp_path, monkeypatch, capsys):
    def refuse(folder, facts):
        raise OSError("no space left on device")

    def run(**options):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if options:
            with hypocenter.watch(**options):
                train(model, optimizer)
        else:
            train(model, optimizer)
        return model.attention.q_proj.weight.detach()

    monkeypatch.setattr("hypocenter.session.observers.facts.write_facts", refuse)

    plain, watched = run(), run(out=tmp_path / "run")

    assert torch.equal(plain, watched)
    assert "FactsKeeper switched off" in capsys.readouterr().err
    assert open_run(tmp_path / "run").facts(0) is None
