"""Image trainings of a second, for the tests of trainings and of crowds."""

from dataclasses import replace

from autodropout.training import Cosine, ImageTraining, Pictures, Sgd

PICTURES = Pictures(name="digits", train=100, validation=100, size=12)
TRAINING = ImageTraining(
    model="wrn-10-1",
    pictures=PICTURES,
    resolution=12,
    steps=10,
    batch=16,
    optimizer=Sgd(lr=0.05),
    schedule=Cosine(),
    augmentation="none",
)


def busy(training: ImageTraining) -> ImageTraining:
    """With everything that a step may have to do."""
    return replace(training, augmentation="randaugment", mix="cutmix", average=0.9, rates="linear", evaluate_every=4)
