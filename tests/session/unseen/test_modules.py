"""A watched model is copied, saved, traced, scripted, exported and transformed as if nobody watched it."""

from __future__ import annotations

import pytest
from trained import TRAINED

CASES = {
    "torch.jit.script": """
made = torch.jit.script(model)
print(made.graph, made(x).sum().item())
train(made, torch.optim.SGD(made.parameters(), 0.1))
""",
    "torch.jit.trace": """
model.eval()
made = torch.jit.trace(model, x)
print(made.graph, made(x).sum().item())
train(model.train(), optimizer)
train(made, torch.optim.SGD(made.parameters(), 0.1))
""",
    "torch.fx": """
made = torch.fx.symbolic_trace(model)
print(made.code)
train(made, torch.optim.SGD(made.parameters(), 0.1))
print(torch.fx.symbolic_trace(model).code)
""",
    "torch.export": """
model.eval()
for strict in (False, True):
    made = torch.export.export(model, (x,), strict=strict)
    print(made.graph, made.graph_signature, made.module()(x).sum().item())
train(model.train(), optimizer)
""",
    "torch.func": """
from torch.func import functional_call, grad, jacrev, vmap

parameters = dict(model.named_parameters())
model.eval()
value = lambda p, v: functional_call(model, p, (v,)).sum()
print({name: g.sum().item() for name, g in grad(value)(parameters, x).items()})
print(vmap(lambda v: model(v[None]).sum())(x))
print(jacrev(lambda v: model(v))(x).sum(), torch.autograd.functional.hessian(lambda v: model(v).pow(2).sum(), x).sum())
print(vmap(grad(value), in_dims=(None, 0))(parameters, x[:, None])["last.bias"])
train(model.train(), optimizer)
""",
    "copies": """
for made in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
    print(sorted(vars(made)), made(x).sum().item())
    print([len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in made.modules()])
file = io.BytesIO()
torch.save(model, file)
print(b"hypocenter" in file.getvalue())
file.seek(0)
print(torch.load(file, weights_only=False)(x).sum().item())
print(list(model.state_dict()), sorted(vars(optimizer)), b"hypocenter" in pickle.dumps(optimizer))
scaler = torch.amp.GradScaler("cpu")
print(pickle.loads(pickle.dumps(scaler)).state_dict(), sorted(vars(scaler)))
""",
    "a copy inside forward": """
class Copied(Model):
    def forward(self, x):
        kept.append(copy.deepcopy(self))
        return super().forward(x)


kept = []
train(Copied(), optimizer)
print(sorted(vars(kept[-1])), len(kept[-1]._forward_hooks), kept[-1](x).sum().item())
""",
    "forward replaced": """
original = model.forward
model.forward = lambda x: original(x) * 2
train(model, optimizer)
del model.forward
train(model, optimizer)
nn.Module.register_forward_hook(model, lambda module, args, output: output * 2)
train(model, optimizer)
""",
    "the fast path of an encoder": """
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
data = torch.randn(2, 5, 8)
train_it = torch.optim.SGD(encoder.parameters(), 0.1)
encoder(data).sum().backward()
train_it.step()
encoder.eval()
with torch.no_grad():
    print(encoder(data).flatten().tolist())
""",
    "gone": """
gone = [weakref.ref(model), weakref.ref(model.first)]
del model
gc.collect()
print([each() is None for each in gone])
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["sentinel", "modules"])
@pytest.mark.parametrize("what", CASES)
def test_a_model_that_was_trained_is_what_it_is_without_us(twice, what, level):
    without, recorded = twice(TRAINED + CASES[what], level)

    assert without[0] == 0, without[2]
    assert recorded == without
