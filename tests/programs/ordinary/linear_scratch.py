"""Linear regression from scratch with functions linreg, squared_loss and sgd (after d2l.ai)."""

import random

import torch


def synthetic_data(w, b, num_examples):
    X = torch.normal(0, 1, (num_examples, len(w)))
    y = torch.matmul(X, w) + b
    return X, (y + torch.normal(0, 0.01, y.shape)).reshape(-1, 1)


def data_iter(batch_size, features, labels):
    indices = list(range(len(features)))
    random.shuffle(indices)
    for i in range(0, len(indices), batch_size):
        batch = torch.tensor(indices[i : i + batch_size])
        picked = features[batch]  # plant: data
        yield picked, labels[batch]


def linreg(X, w, b):
    out = torch.matmul(X, w) + b  # plant: model
    return out


def squared_loss(y_hat, y):
    error = (y_hat - y.reshape(y_hat.shape)) ** 2 / 2  # plant: loss
    return error


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()


random.seed(0)
torch.manual_seed(0)
features, labels = synthetic_data(torch.tensor([2, -3.4]), 4.2, 120)
w = torch.normal(0, 0.01, size=(2, 1), requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for epoch in range(2):
    for _ in range(3):  # turn
        X, y = next(data_iter(20, features, labels))
        total = squared_loss(linreg(X, w, b), y).sum()  # plant: total
        total.backward()
        sgd([w, b], 0.03, 20)
        print("batch loss", total.item())
    with torch.no_grad():
        print(f"epoch {epoch + 1}, loss {squared_loss(linreg(features, w, b), labels).mean().item()}")
