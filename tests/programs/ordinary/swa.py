"""torch.optim.swa_utils: averaged weights with batch norm statistics renewed at the end, and an EMA beside it."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 20)
        self.bn = nn.BatchNorm1d(20)
        self.fc2 = nn.Linear(20, 2)

    def forward(self, x):
        x = self.bn(self.fc1(x))  # plant: forward
        return self.fc2(torch.relu(x))


torch.manual_seed(2)
X = torch.randn(96, 6)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), batch_size=32, shuffle=True)
model = Net()
swa_model = AveragedModel(model)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=1)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(4):
    for inputs, target in loader:  # turn
        inputs = inputs + 0.05 * torch.randn_like(inputs)  # plant: data
        optimizer.zero_grad()
        logits = model(inputs)  # plant: output
        loss = loss_fn(logits, target)  # plant: loss
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
        print("loss", loss.item())
    if epoch >= 2:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn(loader, swa_model)
swa_model.eval()
print("swa accuracy", (swa_model(X).argmax(1) == (X.sum(1) > 0)).float().mean().item())
