"""Models that torchvision and timm lack or write differently, as plain `nn.Module` code, and the paper's by name."""

from autodropout.models.images import IMAGE_MODELS, check_image_model, head, image_model
from autodropout.models.wide_resnet import WideResNet, wide_resnet

__all__ = ["IMAGE_MODELS", "WideResNet", "check_image_model", "head", "image_model", "wide_resnet"]
