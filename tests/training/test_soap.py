"""SOAP goes down a badly scaled valley far faster than Adam, and moves what is no matrix as well."""

import torch
from torch import nn

from gce.training.soap import Soap


def left_after(optimiser, steps=400):
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(12, 12, generator=generator))[0]
    X = torch.randn(200, 12, generator=generator) * torch.logspace(0, -2, 12) @ turn
    Y = X @ turn.T @ torch.diag(torch.logspace(0, 2, 12))[:, :8] + 0.5
    map_ = nn.Linear(12, 8)
    with torch.no_grad():
        map_.weight.zero_(), map_.bias.zero_()
    moving = optimiser(map_.parameters(), lr=0.05)
    for _ in range(steps):
        moving.zero_grad()
        loss = (map_(X) - Y).square().mean()
        loss.backward()
        moving.step()
    return float(loss.detach())


def test_soap_goes_down_a_turned_valley():
    assert left_after(Soap) < 0.3 * left_after(torch.optim.Adam)
