"""Whether the masks of a GPU are made by Triton's kernels. `AUTODROPOUT_TRITON=0` says no: plain PyTorch makes them."""

import importlib.util
import os

import torch
from torch import Tensor

TRITON = os.environ.get("AUTODROPOUT_TRITON", "1") != "0" and importlib.util.find_spec("triton") is not None


def on_gpu(h: Tensor) -> bool:
    """Whether a tensor's masks are the kernels' to make."""
    return TRITON and h.is_cuda and h.dtype in (torch.float16, torch.bfloat16, torch.float32)


def compiled_for_gpu(h: Tensor) -> bool:
    """Whether this is code that becomes kernels' calls and fused arithmetic: else plain operations serve better."""
    return on_gpu(h) and torch.compiler.is_compiling()
