"""Every experiment of the paper by name: its trainings, where it stands in the paper, the figures there, its cost.

The trainings themselves are in `images`, `language`, `translation` and `digits`, with all their numbers. Figures are
the paper's, in percent of accuracy (top-1 / top-5 on ImageNet), perplexity (validation / test) or BLEU; those it took
from others' papers, in Table 2 those without a dagger, are marked "cited".
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from autodropout.recipes import images, language, translation
from autodropout.recipes.digits import digits
from autodropout.recipes.recipe import Recipe, Training
from autodropout.training.images import ImageTraining
from autodropout.training.pictures import Pictures

SEARCH_COST = "search: 16,384 children of 40 minutes on 4 TPU v2 (the paper)"
TABLE_1 = "Table 1, supervised image classification"
TABLE_2 = "Table 2, pushing the limits of ResNets"
TABLE_3 = "Table 3, semi-supervised image classification"
TABLE_4 = "Table 4, language models and translation"

CIFAR_FIGURES = {
    "none": "96.1 ± 0.12",
    "dropblock": "96.2 ± 0.07",
    "stochastic_depth": "96.2 ± 0.07",
    "policy": "96.8 ± 0.09",
}
CIFAR_LIMITS = {
    "drop_path (cited)": "95.4",
    "manifold_mixup (cited)": "97.5 ± 0.02",
    "mixup": "97.1 ± 0.08",
    "cutmix": "96.7 ± 0.05",
    "moex (cited)": "96.7 ± 0.03",
    "cutmix_randaugment": "97.0 ± 0.06",
    "policy with randaugment": "97.9 ± 0.06",
}
RESNET_FIGURES = {
    "none": "76.5 / 93.4",
    "dropblock": "78.3 / 94.3",
    "stochastic_depth": "77.5 / 93.7",
    "policy": "78.7 / 94.3",
}
RESNET_LIMITS = {
    "drop_path (cited)": "77.1 / 93.5",
    "manifold_mixup (cited)": "77.5 / 93.8",
    "mixup (cited)": "77.9 / 93.9",
    "cutmix (cited)": "78.6 / 94.1",
    "moex (cited)": "79.1 / 94.3",
    "cutmix_randaugment": "78.3 / 94.2",
    "cutmix_fixres (cited)": "79.8 / 94.9",
    "policy with randaugment": "80.3 / 95.1",
}
EFFICIENTNET_FIGURES = {
    "b0": {
        "none": "76.2 / 92.9",
        "dropblock": "76.3 / 92.8",
        "stochastic_depth": "76.8 / 93.1",
        "policy": "77.5 / 93.8",
    },
    "b3": {"stochastic_depth": "80.2 / 95.0", "policy": "80.9 / 95.6"},
    "b5": {"stochastic_depth": "82.5 / 96.2", "policy": "83.1 / 96.5"},
    "b7": {"stochastic_depth": "84.1 / 96.9", "policy": "84.7 / 97.1"},
}
CIFAR_4K_FIGURES = {
    "LGA+VAT (cited)": "87.9 ± 0.19",
    "ICT (cited)": "92.7 ± 0.02",
    "MixMatch (cited)": "93.8 ± 0.06",
    "ReMixMatch (cited)": "94.9 ± 0.04",
    "fixmatch (cited)": "95.7 ± 0.05",
    "none": "94.9 ± 0.12",
    "policy": "95.8 ± 0.04",
}
IMAGENET_10_FIGURES = {
    "LLP (cited)": "- / 88.5",
    "SimCLR (cited)": "69.3 / 89.0",
    "fixmatch (cited)": "71.5 / 89.1",
    "none": "68.8 / 88.8",
    "policy": "72.9 / 91.4",
}


def cifar10() -> Recipe:
    final = images.cifar10_final()
    return Recipe(
        name="cifar10",
        what="WRN-28-10 on CIFAR-10; searched with a WRN-28-2",
        proxy=images.cifar10_search(),
        rate=images.SEARCH_RATE,
        final=final,
        crowd=8,
        tuning=_holding_out(final, train=45_000, validation=5_000),
        methods=_mixes(images.cifar10_final, "standard"),
        reproduces=f"{TABLE_1}; {TABLE_2}",
        paper=CIFAR_FIGURES | CIFAR_LIMITS,
        cost=f"{SEARCH_COST}; final: 200 epochs",
    )


def cifar10_4k() -> Recipe:
    return Recipe(
        name="cifar10-4k",
        what="UDA, a WRN-28-2 and 4,000 labels of CIFAR-10; searched on 3,600 + 400 of them",
        proxy=images.cifar10_4k_search(),
        rate=images.SEARCH_RATE,
        final=images.cifar10_4k_uda(),
        crowd=8,
        tuning=images.cifar10_4k_uda(labels=3_600, validation=400),
        methods={"fixmatch": images.cifar10_4k_fixmatch()},
        reproduces=TABLE_3,
        paper=CIFAR_4K_FIGURES,
        cost=f"{SEARCH_COST}; final: 500,000 steps",
    )


def resnet50() -> Recipe:
    final = images.resnet50()
    methods = _mixes(images.resnet50, "imagenet") | {"cutmix_fixres": images.resnet50(mix="cutmix", fixres=True)}
    return Recipe(
        name="resnet50",
        what="ResNet-50 on ImageNet; searched at half its width, on 80,000 images",
        proxy=images.resnet50_search(),
        rate=images.SEARCH_RATE,
        final=final,
        tuning=_holding_out(final, train=None, validation=5_000),
        methods=methods,
        reproduces=f"{TABLE_1}; {TABLE_2}",
        paper=RESNET_FIGURES | RESNET_LIMITS,
        cost=f"{SEARCH_COST}; final: 240 epochs of ImageNet",
    )


def imagenet_10() -> Recipe:
    return Recipe(
        name="imagenet-10",
        what="UDA, ResNet-50 and a tenth of ImageNet's labels",
        proxy=images.resnet50_search(),
        rate=images.SEARCH_RATE,
        final=images.imagenet_10_uda(),
        tuning=images.imagenet_10_uda(labels=123_000, validation=5_000),
        methods={"fixmatch": images.imagenet_10_fixmatch()},
        reproduces=TABLE_3,
        paper=IMAGENET_10_FIGURES,
        cost="final: 40,000 steps of 512 labelled and 15,360 other images",
        policy_from="resnet50",
    )


def efficientnet_b0() -> Recipe:
    return _efficientnet("b0")


def efficientnet_b3() -> Recipe:
    return _efficientnet("b3")


def efficientnet_b5() -> Recipe:
    return _efficientnet("b5")


def efficientnet_b7() -> Recipe:
    return _efficientnet("b7")


def ptb() -> Recipe:
    return Recipe(
        name="ptb",
        what="Transformer-XL on Penn Treebank",
        proxy=language.search_training(),
        final=language.final_training(),
        reproduces=TABLE_4,
        paper={
            "variational_dropout": "59.1 / 56.0",
            "variational dropout everywhere": "59.8 / -",
            "policy": "58.1 / 54.9",
        },
        cost=f"{SEARCH_COST}; final: 320,000 steps",
        rate=language.RATE,
        crowd=8,
    )


def ptb_small() -> Recipe:
    return Recipe(
        name="ptb-small",
        what="a small Transformer-XL on Penn Treebank: a search that one GPU can do",
        proxy=language.ptb_small_search(),
        final=language.ptb_small(),
        reproduces="nothing in the paper: the same task at a size for many children on one GPU",
        cost="search: 10 minutes of an H200, by the pace of crowds of 16",
        measured="test perplexity after 6,000 steps, 24 seeds: policy of random search 80.63, of the controller 80.65, "
        "Dropout at all sites 81.44 (results/ptb/race.json); none 84.12, 20 seeds, at its best length (honest.json)",
        trials=512,
        capacity=16,
        crowd=16,  # a controller learns from each minibatch before it writes the next
        rate=language.SMALL_RATE,
        rates=(0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    )


def wikitext2() -> Recipe:
    return Recipe(
        name="wikitext2",
        what="Transformer-XL on WikiText-2 with Penn Treebank's policy",
        proxy=language.wikitext2_transformer_xl(language.SEARCH_STEPS),
        final=language.wikitext2_transformer_xl(),
        reproduces=f"{TABLE_4}: transfer",
        paper={"variational_dropout": "63.9 / 61.4", "policy": "62.7 / 59.9"},
        cost="final: 320,000 steps",
        policy_from="ptb",
        rate=language.RATE,
    )


def iwslt14() -> Recipe:
    return _translation(
        "iwslt14",
        "Transformer-Base, German to English, IWSLT'14, with Penn Treebank's policy",
        translation.iwslt14_de_en(),
        {"dropout": "34.4", "policy": "35.8"},
        "final: 15,000 steps",
    )


def wmt14() -> Recipe:
    return _translation(
        "wmt14",
        "Transformer-Base, English to French, WMT'14, with Penn Treebank's policy",
        translation.wmt14_en_fr(),
        {"dropout": "38.1", "policy": "40.0"},
        "final: 35,000 steps",
    )


def multi30k() -> Recipe:
    found = _translation(
        "multi30k",
        "a small Transformer, German to English, captions: a stand-in for IWSLT'14",
        translation.multi30k_de_en(),
        {},
        "",
    )
    return replace(found, reproduces="nothing in the paper: smaller data of the same kind")


def _efficientnet(size: Literal["b0", "b3", "b5", "b7"]) -> Recipe:
    final = images.efficientnet(size)
    return Recipe(
        name=f"efficientnet-{size}",
        what=f"EfficientNet-{size.upper()} on ImageNet" + ("; searched at half its width" if size == "b0" else ""),
        proxy=images.efficientnet_b0_search(),
        rate=images.SEARCH_RATE,
        final=final,
        tuning=_holding_out(final, train=None, validation=5_000),
        reproduces=TABLE_1,
        paper=EFFICIENTNET_FIGURES[size],
        cost=f"{SEARCH_COST if size == 'b0' else ''}; final: 350 epochs of ImageNet".lstrip("; "),
        policy_from="" if size == "b0" else "efficientnet-b0",
    )


def _translation(name: str, what: str, training: Training, paper: dict[str, str], cost: str) -> Recipe:
    return Recipe(
        name=name,
        what=what,
        proxy=training,
        final=training,
        reproduces=f"{TABLE_4}: transfer",
        paper=paper,
        cost=cost,
        policy_from="ptb",
        rate=translation.RATE,
    )


def _mixes(make: Callable[..., ImageTraining], plain: str) -> dict[str, Training]:
    """The baselines that change images and labels, rather than what happens inside the model."""
    strong = "randaugment" if plain == "standard" else f"{plain}_randaugment"
    found: dict[str, Training] = {mix: make(mix=mix) for mix in ("mixup", "cutmix", "manifold_mixup", "moex")}
    return found | {"randaugment": make(strong), "cutmix_randaugment": make(strong, mix="cutmix")}


def _holding_out(training: ImageTraining, train: int | None, validation: int) -> ImageTraining:
    """The same training with a part of the images kept for choosing a rate; the test set is not for that."""
    pictures: Pictures = replace(training.pictures, train=train, validation=validation)
    return replace(training, pictures=pictures)


CATALOGUE: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-4k": cifar10_4k,
    "resnet50": resnet50,
    "imagenet-10": imagenet_10,
    "efficientnet-b0": efficientnet_b0,
    "efficientnet-b3": efficientnet_b3,
    "efficientnet-b5": efficientnet_b5,
    "efficientnet-b7": efficientnet_b7,
    "ptb": ptb,
    "ptb-small": ptb_small,
    "wikitext2": wikitext2,
    "iwslt14": iwslt14,
    "wmt14": wmt14,
    "multi30k": multi30k,
}
