"""An autoencoder and a classifier on its code, trained together by one optimizer."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        code = self.net(x)  # plant: encoder
        return code


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(4, 16), nn.Linear(16, 10)

    def forward(self, z):
        z = torch.relu(self.lin1(z))  # plant: decoder
        return self.lin2(z)


torch.manual_seed(21)
encoder, decoder, classifier = Encoder(), Decoder(), nn.Linear(4, 3)
params = [*encoder.parameters(), *decoder.parameters(), *classifier.parameters()]
optimizer = torch.optim.RMSprop(params, lr=1e-3)
X, Y = torch.randn(64, 10), torch.randint(0, 3, (64,))
for epoch in range(8):  # turn
    x = X[torch.randperm(64)[:32]]  # plant: data
    y = Y[:32]
    z = encoder(x)
    recon_loss = nn.functional.mse_loss(decoder(z), x)  # plant: recon-loss
    class_loss = nn.functional.cross_entropy(classifier(z), y)
    loss = recon_loss + 0.5 * class_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, recon_loss.item(), class_loss.item())
