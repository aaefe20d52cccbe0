"""The default problem: 200 handwritten digits to learn from, 600 to be judged by, and a Wide ResNet of 78,000 weights.

It shows the machinery, not the gain: so that a whole search takes two CPU cores about two minutes, a child is given 80
steps, and in so short a training regularization costs more than it brings. What counts here is that policies differ by
more than chance, so that there is something to learn. Accuracy on the validation part, rate 0.2:

    no policy, 6 seeds                          .927, deviation between seeds .008
    16 random policies, the mean of 3 seeds     .841 to .926, mean .899; between policies, chance taken out, .023
    one policy, from seed to seed               deviation .015, pooled over the 16

With 10 epochs policies differ by .010 and seeds by .010, with 100 labels and 20 epochs by .011 and .015 (10 policies,
2 seeds each). The whole search took 217 s of CPU time, 1.8 s a child, on a machine busy with other work.
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
