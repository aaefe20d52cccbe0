"""How often a classifier is right: top-1 accuracy, and top-5 where there are many classes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from autodropout.data import Labelled
from autodropout.training.distributed import agree, total
from autodropout.training.feed import chunks
from autodropout.training.run import Run

BATCH = 200
MANY_CLASSES = 100


@torch.no_grad()
def accuracies(
    model: nn.Module, view: Callable[[Tensor], Tensor], examples: Labelled, classes: int, run: Run
) -> dict[str, float]:
    """`accuracy`, and `top5` from 100 classes on, in [0, 1]; the ranks share the work, with rank 0's statistics. The
    model is left in eval mode.

    Args:
        model: images (N, C, H, W) to logits (N, classes).
        view: what makes stored images into the model's; draws nothing.
        examples: what it is judged by, at least one.
        run: says where, and at which precision.

    Raises:
        FloatingPointError: a logit was not finite. A network of NaNs would still name a class for each image.
    """
    model.eval()
    agree(model)
    right = torch.zeros(3, dtype=torch.int64, device=run.where)  # at first; among five; logits not finite
    for images, labels in chunks(examples, BATCH, run.where):
        with run.autocast():
            logits: Tensor = model(view(images))  # (n, classes)
        named = logits.topk(min(5, classes)).indices == labels[:, None]  # (n, 5)
        right += torch.stack((named[:, 0].sum(), named.sum(), (~logits.isfinite()).sum()))
    first, five, broken = total(right).tolist()  # the only wait for the device
    if broken:
        raise FloatingPointError("the model's logits are not finite")
    result = {"accuracy": first / len(examples)}
    return result | {"top5": five / len(examples)} if classes >= MANY_CLASSES else result
