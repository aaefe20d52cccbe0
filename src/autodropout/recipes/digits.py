"""The default problem: 400 handwritten digits on noise to learn from, 600 to be judged by, and a Wide ResNet of 78,000
weights.

Small enough that a whole search takes two CPU cores a few minutes, and hard enough that there is something to find:
without regularization the network learns the noise of its 400 images by heart. Error on the validation part, %
(`studies/digits`, `results/digits`):

    no policy, 20 seeds                            12.3
    the best classical methods, tuned, 20 seeds    9.3 (Dropout), 9.1 (Spatial Dropout)
    32 random policies at 0.6, two seeds each      7.6 to 29.6, median 10.9; they deviate by 3.9, seeds by 1.9
    the best of 96, found by other seeds, 20       7.2 (the controller's), 7.9 (random search's), both at 0.4
    the best of 400, in the same way               7.4 and 6.7, both at 0.6
"""

from autodropout.recipes.recipe import Recipe
from autodropout.training import Cosine, ImageTraining, Pictures, Sgd

TRAIN, BATCH = 400, 25


def digits(rate: float = 0.6, epochs: int = 25) -> Recipe:
    """The recipe `digits`: learned policies for a WRN-10-1 on scikit-learn's digits, which are put on noise.

    Args:
        rate: at which a child's policy drops; 0.2 in the paper's searches.
        epochs: of a child.
    """
    steps = epochs * TRAIN // BATCH
    training = ImageTraining(
        model="wrn-10-1",
        pictures=Pictures(name="digits-on-noise", train=TRAIN, validation=600),
        resolution=20,
        steps=steps,
        batch=BATCH,
        optimizer=Sgd(lr=0.1),
        schedule=Cosine(),
        augmentation="none",
        average=0.97,
        evaluate_every=-(-steps // 2),
    )
    return Recipe(
        name="digits",
        what="a WRN-10-1 on 400 of scikit-learn's digits, on noise: a search that a laptop can do",
        reproduces="nothing in the paper",
        cost="search: five to six minutes of two CPU cores",
        measured="test error over 20 seeds, %: policy of the controller 8.0, of random search 8.1, Dropout 9.2, "
        "none 12.0 (results/digits/honest.json)",
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
