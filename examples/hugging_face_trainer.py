"""A policy under the Hugging Face Trainer.

Run: python examples/hugging_face_trainer.py (needs transformers and accelerate)
"""

import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import autodropout as ad


class StepRate(TrainerCallback):
    """Steps a rate schedule with the trainer."""

    def __init__(self, schedule: ad.RateSchedule) -> None:
        self.schedule = schedule

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: object
    ) -> None:
        self.schedule.step()


def train(steps: int = 6) -> tuple[ad.Attachment, float]:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    model = BertForSequenceClassification(config)
    tokens = torch.randint(100, (32, 24))
    data = [{"input_ids": row, "labels": int(row[0] > 50)} for row in tokens]

    policy = ad.space(model, {"input_ids": tokens[:2]}).sample(seed=0)
    on = ad.attach(model, policy, rate=0.1, example={"input_ids": tokens[:2]})
    schedule = ad.RateSchedule(on, "late", rate=0.1, steps=steps)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[StepRate(schedule)])
        result = trainer.train()
    return on, result.training_loss


if __name__ == "__main__":
    on, loss = train()
    print(on)
    print(f"training loss {loss:.3f}, final rate {on.rate}")
