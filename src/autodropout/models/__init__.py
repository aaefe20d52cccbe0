"""Models that torchvision and timm lack or write differently; all of them plain `nn.Module` code."""

from autodropout.models.wide_resnet import WideResNet, wide_resnet

__all__ = ["WideResNet", "wide_resnet"]
