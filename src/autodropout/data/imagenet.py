"""ImageNet (ILSVRC 2012) from a folder the user has, and the paper's splits of it.

    data = load()                         # the paper's search: 80,000 to learn from, 5,000 for reward
    data = load(None, validation=0)       # a final run: all 1,281,167
    data = semi()                         # ImageNet-10%: 128 of each class labelled, the rest unlabelled
    data = load(None, validation=0, size=..., data="/disks/imagenet")

Every part has equally many images of each class, and the smaller lie in the larger: the 85,000 of the search are in the
128,000 of ImageNet-10%, as the paper has it. `test` is the official validation set, 50,000 images.

Images are decoded once into a file in the folder, size x size x 3 bytes each: at 256, 27 GB for the search, 262 GB for
everything, the test part among them; see `image_store`. Where there is no room for them, decode on the fly:
`DataLoader(image_files.Decoded(files, 256))`, with the files from `image_folders.list_parts`.
"""

from pathlib import Path

from autodropout.data.folders import find
from autodropout.data.image_folders import divided
from autodropout.data.splits import SemiSplits, Splits

NAME = "imagenet"
CLASSES = 1000
ADVICE = (
    "get an account at image-net.org, take ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, unpack them to "
    "imagenet/train/CLASS/*.JPEG and imagenet/val/CLASS/*.JPEG (or imagenet/val/*.JPEG with imagenet/val.txt, a line "
    "`FILE CLASS` each), and point AUTODROPOUT_DATA or --data to the folder that has imagenet/"
)


def load(
    train: int | None = 80_000,
    validation: int = 5_000,
    *,
    size: int = 256,
    data: Path | str | None = None,
    seed: int = 0,
) -> Splits:
    """Images as uint8 (N, 3, size, size), mapped into memory; the same splits at every call, for ever.

    Args:
        train, validation: how many training images, multiples of 1,000; `train` None for all that remain.
        size: of the decoded images.
        data: the folder of datasets; see `folders.root`.
        seed: of the draw of the splits.

    Raises:
        MissingData: the folder is not there.
        ValueError: it is not ImageNet's, or an image is damaged.
    """
    parts = divided(folder(data), train, validation, False, CLASSES, size, seed)
    return Splits(parts.train, parts.validation, parts.test)


def semi(
    train: int = 123_000, validation: int = 5_000, *, size: int = 256, data: Path | str | None = None, seed: int = 0
) -> SemiSplits:
    """As `load`, and every training image in neither part is unlabelled. For a final run: 128,000 and 0."""
    return divided(folder(data), train, validation, True, CLASSES, size, seed)


def folder(data: Path | str | None = None) -> Path:
    """Where train/ and val/ are."""
    return find(NAME, ("train", "val"), inside=("ILSVRC/Data/CLS-LOC",), data=data, advice=ADVICE)
