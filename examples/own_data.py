"""Search for your own model and data: python examples/own_data.py; it leaves the study and its best policy here."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import autodropout as ad


def data() -> tuple[torch.Tensor, torch.Tensor]:  # 1. yours: here 1,797 digits of 8x8
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)


def model() -> nn.Module:  # 2. yours: patterns go behind the normalizations of any module, found by tracing it
    features = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(256, 10))


def child(policy: ad.Policy, seed: int) -> float:  # 3. yours: train under the policy; the score, higher is better
    torch.set_num_threads(1)  # several children share the machine
    torch.manual_seed(seed)
    (x, y), net = data(), model()
    ad.attach(net, policy, example=x[:1])  # at the search's rate
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[:100]), y[:100]).backward()
        optimizer.step()
    return (net.eval()(x[100:1000]).argmax(1) == y[100:1000]).float().mean().item()  # the rest: for a last test


if __name__ == "__main__":  # run again, it resumes: only trials still missing are made
    space, trials = ad.space(model(), data()[0][:1]), int(sys.argv[1]) if len(sys.argv) > 1 else 64
    study = ad.search(space, child, trials, rate=0.2, workers=2, storage="sqlite:///own_data.db")
    found = ad.confirm(study, child, top=4, seeds=3, workers=2)  # the best of many scores is partly luck
    print(f"the best of {len(study.trials)} scored {study.best.value:.3f}; with new seeds:\n{found}")
    if found.policy is not None:  # it is better than none
        found.policy.save("own_data.json")
