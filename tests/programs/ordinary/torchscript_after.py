"""Train, then make TorchScript of the model by script and by trace, save, load and compare."""

import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x):
        x = self.features(x)
        return self.fc(torch.flatten(x, 1))


torch.manual_seed(17)
model = Net()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
images, labels = torch.rand(32, 1, 8, 8), torch.randint(0, 5, (32,))
for step in range(6):  # turn
    x = images * 2.0 - 1.0  # plant: data
    opt.zero_grad()
    out = model(x)  # plant: output
    smooth = torch.log_softmax(out, dim=1)  # plant: log-probabilities
    loss = nn.functional.nll_loss(smooth, labels)  # plant: loss
    loss.backward()
    opt.step()
    print(step, loss.item())

model.eval()
scripted = torch.jit.script(model)
traced = torch.jit.trace(model, images[:1])
buffer = io.BytesIO()
torch.jit.save(scripted, buffer)
buffer.seek(0)
loaded = torch.jit.load(buffer)
with torch.no_grad():
    print(torch.equal(loaded(images), model(images)), torch.equal(traced(images), model(images)))
print(scripted.code)
