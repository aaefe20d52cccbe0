"""Small models for the contract tests, each with an example: a ConvNet and Transformers of different making."""

from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

import autodropout as ad


@dataclass(frozen=True)
class Case:
    """A model, an input, and a policy that puts an active pattern at every site."""

    name: str
    model: nn.Module
    example: Any
    policy: ad.Policy

    def run(self, model: nn.Module | None = None) -> torch.Tensor:
        """The model's output as one tensor."""
        model = self.model if model is None else model
        out = model(**self.example) if isinstance(self.example, dict) else model(self.example)
        return out if isinstance(out, torch.Tensor) else out[0]


def everywhere(model: nn.Module, example: Any) -> ad.Policy:
    """A policy with a pattern at every group or site, shortcuts included, everything transformed, nothing shared."""
    space = ad.space(model, example)
    if isinstance(space, ad.ConvSpace):
        return space.decode((2, 0, 1, 0, 1, 3, 2, 1) * len(space.groups))
    return space.decode((1, 1, 0, 0) * len(space.sites))


def resnet18() -> Case:
    model = torchvision.models.resnet18(num_classes=5)
    example = torch.randn(2, 3, 160, 160)
    return Case("resnet18", model, example, everywhere(model, example))


def convnext() -> Case:
    """Its tensors are (N, H, W, C) where they are normalized."""
    sizes = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 2)]
    model = ConvNeXt(sizes, num_classes=5)
    example = torch.randn(2, 3, 80, 80)
    return Case("convnext", model, example, everywhere(model, example))


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2)
    example = torch.randn(3, 23, 16)
    return Case("encoder", model, example, everywhere(model, example))


def bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertModel(config)
    example = {"input_ids": torch.randint(50, (3, 23)), "attention_mask": torch.ones(3, 23, dtype=torch.long)}
    return Case("bert", model, example, everywhere(model, example))


MAKERS = {"resnet18": resnet18, "convnext": convnext, "encoder": encoder, "bert": bert}
