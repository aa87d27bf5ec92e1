"""Encoder and decoder GRUs with an optimizer each, teacher forcing half of the time (after the translation tutorial)."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

SOS, HIDDEN, VOCAB = 0, 16, 12


class EncoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.gru = nn.GRU(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, x):
        embedded = self.embedding(x)  # plant: encoder
        return self.gru(embedded)


class DecoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.gru = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, VOCAB)

    def forward(self, token, hidden):
        output, hidden = self.gru(F.relu(self.embedding(token)), hidden)  # plant: decoder output
        return self.out(output), hidden


def train(input_tensor, target_tensor):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    _, hidden = encoder(input_tensor)
    token = torch.full((input_tensor.size(0), 1), SOS)
    hidden = hidden * 0.9  # plant: hidden
    loss = 0
    teacher = random.random() < 0.5
    for t in range(target_tensor.size(1)):
        logits, hidden = decoder(token, hidden)
        loss = loss + F.cross_entropy(logits.squeeze(1), target_tensor[:, t])
        token = target_tensor[:, t : t + 1] if teacher else logits.argmax(-1).detach()
    loss = loss / target_tensor.size(1)  # plant: loss
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
    return loss.item()


random.seed(3)
torch.manual_seed(3)
encoder, decoder = EncoderRNN(), DecoderRNN()
encoder_optimizer = optim.SGD(encoder.parameters(), lr=0.1)
decoder_optimizer = optim.SGD(decoder.parameters(), lr=0.1)
for iteration in range(7):  # turn
    source = torch.randint(1, VOCAB, (8, 5))
    print(iteration, train(source, source.flip(1)))
