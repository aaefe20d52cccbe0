"""A policy under Lightning. Run: python examples/lightning_trainer.py (needs lightning)"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

import autodropout as ad


class Classifier(lightning.LightningModule):
    """A ResNet-18 with a policy; the rate rises over training and is saved with the checkpoint."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.model = resnet18(num_classes=10)
        example = torch.randn(1, 3, 160, 160)
        policy = ad.space(self.model, example).sample(seed=0)
        self.on = ad.attach(self.model, policy, rate=0.2, example=example)
        self.rate = ad.RateSchedule(self.on, "linear", rate=0.2, steps=steps)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def on_train_batch_end(self, outputs: object, batch: object, batch_index: int) -> None:
        self.rate.step()

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        checkpoint["dropout_rate"] = self.rate.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        self.rate.load_state_dict(checkpoint["dropout_rate"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def train(steps: int = 4) -> Classifier:
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(4 * steps, 3, 160, 160), torch.randint(10, (4 * steps,)))
    module = Classifier(steps)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=4))
    return module


if __name__ == "__main__":
    print(train().on)
