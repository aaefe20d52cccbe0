"""The default problem: 200 handwritten digits to learn from, 600 to be judged by, and a Wide ResNet of 78,000 weights.

It shows the machinery, not the gain: so that a whole search takes two CPU cores a few minutes, a child is given 80
steps, and in so short a training regularization costs more than it brings. Policies differ, so there is something to
learn, but hardly more than the seeds of one policy do: half of a single score is chance. Accuracy on the validation
part, rate 0.2 (`benchmarks/digits.py`, `results/digits.json`):

    no policy, 6 seeds                          .938, deviation between seeds .007
    16 random policies, the mean of 3 seeds     .854 to .934, mean .901; between policies, chance taken out, .022
    one policy, from seed to seed               deviation .019, pooled over the 16
"""

from autodropout.recipes.recipe import Recipe
from autodropout.training import Cosine, ImageTraining, Pictures, Sgd

TRAIN, BATCH = 200, 20


def digits(rate: float = 0.2, epochs: int = 8) -> Recipe:
    """The recipe `digits`: learned policies for a WRN-10-1 on scikit-learn's digits.

    Args:
        rate: at which a child's policy drops; 0.2 in the paper's searches.
        epochs: of a child.
    """
    steps = epochs * TRAIN // BATCH
    training = ImageTraining(
        model="wrn-10-1",
        pictures=Pictures(name="digits", train=TRAIN, validation=600),
        resolution=20,
        steps=steps,
        batch=BATCH,
        optimizer=Sgd(lr=0.1),
        schedule=Cosine(),
        augmentation="none",
        evaluate_every=-(-steps // 2),  # 600 images to judge cost as much as 200 to learn: twice will do
    )
    return Recipe(
        name="digits",
        what="a WRN-10-1 on 200 of scikit-learn's digits: shows the machinery, not the gain",
        proxy=training,
        final=training,
        on_cpu=True,
        rate=rate,
        trials=96,  # six updates
        workers=2,
        capacity=4,  # twice the workers: none waits, and no proposal grows old
        minibatch=16,
        floor=1 / training.pictures.kind.classes,  # a child that diverges knows nothing
    )
