"""Under `torch.vmap` an operator of ours takes the children's tensors stacked along their first dimension."""

from torch import Tensor


def stacked(tensor: Tensor, dim: int | None, children: int) -> Tensor:
    """(children, ...): of a tensor that has the children along `dim`, or of one that they share."""
    return tensor.expand(children, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
