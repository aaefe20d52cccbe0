"""A policy, a rate schedule and a plain PyTorch loop. Run: python examples/plain_loop.py"""

import torch
from torch import nn
from torchvision.models import resnet18

import autodropout as ad


def train(steps: int = 20) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(0)
    model = resnet18(num_classes=10)
    images, labels = torch.randn(8, 3, 160, 160), torch.randint(10, (8,))

    policy = ad.space(model, images[:1]).sample(seed=0)  # or ad.load("policy.json")
    on = ad.attach(model, policy, rate=0.2, example=images[:1])
    schedule = ad.RateSchedule(on, "linear", rate=0.2, steps=steps)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    model.train()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())

    on.detach()  # optional: in eval mode an attached policy does nothing
    return model.eval(), losses


if __name__ == "__main__":
    _, losses = train()
    print("loss:", " ".join(f"{loss:.2f}" for loss in losses))
