"""Every experiment of the paper: complete, its policy fits where it goes, and its smoke size runs as a command."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autodropout import recipes
from autodropout.cli import app
from autodropout.data import Reads
from autodropout.data.fetch.catalogue import DATASETS
from autodropout.recipes import after
from autodropout.recipes.catalogue import CATALOGUE
from autodropout.recipes.translation import multi30k_de_en

FAMILIES = {"digits": None, "cifar10": "cifar10", "ptb": "ptb", "multi30k": "multi30k"}  # and the data each needs
REST = {
    "cifar10-4k": "cifar10",
    "resnet50": "imagenette",
    "imagenet-10": "imagenette",
    "efficientnet-b0": "imagenette",
    "efficientnet-b3": "imagenette",
    "efficientnet-b5": "imagenette",
    "efficientnet-b7": "imagenette",
    "ptb-small": "ptb",
    "wikitext2": "wikitext-2",
    "iwslt14": "multi30k",
    "wmt14": "multi30k",
}


def needs(dataset: str | None) -> None:
    folder = os.environ.get("AUTODROPOUT_DATA")
    if dataset is not None and (folder is None or not (Path(folder) / dataset).is_dir()):
        pytest.skip(f"no {dataset} in AUTODROPOUT_DATA ({folder})")


def test_the_names_are_those_of_the_catalogue() -> None:
    assert tuple(CATALOGUE) == recipes.RECIPES
    assert set(recipes.RECIPES) == {*FAMILIES, *REST}


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_an_entry_is_complete(name: str) -> None:
    recipe = recipes.get(name)
    assert recipe.name == name
    assert recipe.what
    if name not in ("digits", "ptb-small", "multi30k"):  # which are not the paper's
        assert "Table" in recipe.reproduces
        assert {"policy"} < set(recipe.paper), "the paper's figure, and one to compare it with"
        assert recipe.cost
    if recipe.policy_from:
        assert recipe.policy_from in recipes.RECIPES


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("cifar10", {"mixup", "cutmix", "cutmix_randaugment"}),
        ("resnet50", {"cutmix_randaugment"}),
        ("cifar10-4k", set()),
        ("imagenet-10", set()),
    ],
)
def test_figures_that_the_paper_took_from_others_are_marked(name: str, own: set[str]) -> None:
    """In Table 2 those without a dagger; all of Table 1 are the authors' own."""
    table_1 = {"none", "dropblock", "stochastic_depth"} if name in ("cifar10", "resnet50") else {"none"}
    unmarked = {method for method in recipes.get(name).paper if not method.endswith(" (cited)")}
    assert {method for method in unmarked if not method.startswith("policy")} == table_1 | own


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_training_says_which_dataset_it_reads(name: str) -> None:
    """By a name that `data get` takes, or nobody could fetch it; at the smoke size too."""
    recipe = recipes.get(name)
    trainings = (recipe.proxy, recipe.final, *filter(None, (recipe.tuning,)), *recipe.methods.values())
    assert len({training.reads for training in trainings}) == 1
    assert recipe.final.reads.dataset in DATASETS
    assert recipe.smoke().final.reads.dataset == (FAMILIES | REST)[name] or name == "digits"


@pytest.mark.parametrize(("source", "target", "dataset"), [("de", "en", "deu"), ("en", "fr", "fra")])
def test_tatoeba_is_a_dataset_for_each_language(source: str, target: str, dataset: str, tmp_path: Path) -> None:
    training = replace(multi30k_de_en(), dataset="tatoeba", source=source, target=target, data=tmp_path)
    assert training.reads == Reads(f"tatoeba-{dataset}-eng", tmp_path)
    assert training.reads.dataset in DATASETS


@pytest.mark.parametrize("name", ["digits", "cifar10", "cifar10-4k", "ptb", "multi30k"])
def test_a_policy_of_the_search_fits_the_final_model(name: str) -> None:
    check_fit(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REST if name != "cifar10-4k"])
def test_a_policy_of_the_search_fits_the_larger_models(name: str) -> None:
    check_fit(name)


def check_fit(name: str) -> None:
    recipe = recipes.get(name)
    searched = recipes.get(recipe.policy_from or name)
    after.transferred(searched.space().sample(seed=0), recipe.final.space())


@pytest.mark.parametrize("name", ["digits", "cifar10", "ptb", pytest.param("multi30k", marks=pytest.mark.slow)])
def test_one_smoke_run_of_each_family(name: str, tmp_path: Path) -> None:
    check_smoke(name, FAMILIES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_the_other_smoke_runs(name: str, tmp_path: Path) -> None:
    check_smoke(name, REST[name], tmp_path)


def check_smoke(name: str, dataset: str | None, folder: Path) -> None:
    """Trained under a policy that `search` could have proposed; started again, it is not trained again."""
    needs(dataset)
    smoke = recipes.get(name).smoke()
    smoke.final.space().sample(seed=1).save(folder / "policy.json")
    command = ["train", name, "--smoke", "--policy", str(folder / "policy.json"), "--out", str(folder), "--json"]
    first = CliRunner().invoke(app, [*command, "--device", "cpu"])
    assert first.exit_code == 0, first.output
    (row,) = json.loads(first.stdout)["rows"]
    assert 0.0 <= row["reward"] < 10.0
    assert any(metric.startswith("validation_") for metric in row["metrics"])
    again = CliRunner().invoke(app, [*command, "--device", "cpu"])
    assert again.stdout == first.stdout
