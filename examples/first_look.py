"""A first look: put a policy on a ResNet-50, train one step under it, and draw its masks: python examples/first_look.py

The policy is drawn at random from the space that is found in the model; nothing here is learned yet.
"""

from pathlib import Path

import torch
import torchvision

import autodropout as ad
from autodropout.report import draw_masks

OUT = Path("out")


def main() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet50()
    images, labels = torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))

    space = ad.space(model, images[:1])
    print(f"{space.describe()}\n")
    policy = space.sample(seed=1729)
    on = ad.attach(model, policy, rate=0.3, example=images[:1])
    print(on)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    print(f"\none training step under the policy: loss {loss.item():.3f}")

    on.detach()
    OUT.mkdir(exist_ok=True)
    policy.save(OUT / "policy.json")
    draw_masks(policy, OUT / "masks.png")
    print(f"the policy: {OUT / 'policy.json'}; its masks: {OUT / 'masks.png'}")


if __name__ == "__main__":
    main()
