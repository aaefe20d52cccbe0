"""The commands around a search, on a recipe that takes no time: what is trained, how often, and what is told."""

import inspect
import json
import math
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import tiny_recipe
import torch
from cli_tools import ok, refused
from typer.testing import CliRunner

import small_study
from autodropout import recipes
from autodropout.cli import app, confirming, experiments
from autodropout.data.digits import load
from autodropout.recipes import comparison
from autodropout.recipes.digits import digits
from autodropout.recipes.translation import iwslt14_de_en
from autodropout.spaces import ConvSpace, Provenance, TransformerSpace
from autodropout.spaces import load as load_policy
from autodropout.training.run import Scores


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The recipe `tiny`, a folder of one's own, and a policy in it."""
    tiny_recipe.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    small_study.SPACE.sample(seed=3).save("policy.json")
    TransformerSpace().sample(seed=3).save("other.json")
    ConvSpace(groups=tuple((size, size) for size in range(56, 49, -1))).sample(seed=3).save("large.json")


def test_recipes_are_listed() -> None:
    assert re.search(r"^tiny  nothing is trained$", ok("recipes"), re.M)
    found = json.loads(ok("recipes", "--json"))["recipes"]
    assert [recipe["name"] for recipe in found] == ["tiny", "other"]
    assert found[0]["trials"] == 8


def test_train_says_what_it_reached_and_where_it_is() -> None:
    said = ok("train", "tiny", "--policy", "policy.json", "--seed", "5", "--json")
    (row,) = json.loads(said)["rows"]
    assert row["reward"] == small_study.score(small_study.SPACE.sample(seed=3))
    assert (row["variant"], row["rate"], row["seed"]) == ("policy", 0.2, 5)
    assert list(Path("out/tiny/train-policy").glob("*/seed-5/scores.json"))
    (row,) = json.loads(ok("train", "tiny", "--json"))["rows"]
    assert (row["variant"], row["rate"], row["reward"]) == ("none", 0.0, 0.5)


def test_what_was_finished_is_said_to_be() -> None:
    first, again = (CliRunner().invoke(app, ["train", "tiny", "--policy", "policy.json"]) for _ in range(2))
    assert "policy, seed 0: " in first.stderr
    assert "policy, seed 0 (finished before): " in again.stderr
    assert first.stdout == again.stdout
    assert "minus" not in first.stdout, "there is nothing to compare with"


def test_a_smoke_run_on_other_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = CliRunner().invoke(app, ["train", "tiny", "--smoke"])
    assert "in place of" not in said.stderr
    assert "a smoke test: it shows that this runs, and its scores mean nothing\n" in said.stdout
    assert "smoke" not in ok("train", "tiny") + ok("train", "tiny", "--json")
    assert json.loads(ok("train", "tiny", "--smoke", "--json"))["smoke"] is True
    meant = replace(recipes.get("tiny"), final=iwslt14_de_en())
    small = recipes.get("tiny")
    monkeypatch.setattr(recipes.Recipe, "smoke", lambda self: small)
    monkeypatch.setattr(recipes, "get", lambda name: meant)
    said = CliRunner().invoke(app, ["train", "tiny", "--smoke"])
    assert "--smoke: on digits in place of iwslt14" in said.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    assert "finds no GPU here" in refused("train", "tiny", "--device", "cuda:1")


@pytest.mark.parametrize(
    ("device", "there", "message"),
    [
        ("cuda:2", 2, "--device cuda:2: the GPUs here are cuda:0 to cuda:1"),
        ("cuda:0", 0, "finds no GPU here"),
        ("mps", 0, "--device mps: trainings run on cpu or cuda"),
        ("meta", 0, "--device meta: trainings run on cpu or cuda"),
    ],
)
def test_a_device_that_is_none(device: str, there: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    assert message in refused("train", "tiny", "--device", device)


def test_too_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(tiny_recipe.Training, "fit", full)
    ask = ("tune-rate", "tiny", "--policy", "policy.json", "--device", "cpu")
    assert "fewer of them at once than --together 64" in refused(*ask, "--together", "64")
    assert "--together" not in refused(*ask)


def test_a_crowd_that_is_interrupted_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_recipe.Training, "fit", interrupted)
    ask = ["tune-rate", "tiny", "--policy", "policy.json", "--device", "cpu"]
    for more, said in (["--together", "4"], "interrupted; the same command reads what is finished"), ([], ""):
        result = CliRunner().invoke(app, [*ask, *more])
        assert result.exit_code == 130
        assert result.stderr.startswith(said)
        assert bool(result.stderr) == bool(said)


@pytest.mark.parametrize("command", ["tune-rate", "ablate", "transfer"])
def test_how_many_are_trained_at_once(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for; what cannot be trained so, as here, is trained one by one."""
    asked: list[int] = []
    compare = comparison.compare
    monkeypatch.setattr(comparison, "compare", lambda *given: asked.append(given[-1]) or compare(*given))
    alone = json.loads(ok(command, "tiny", "--policy", "policy.json", "--json", "--out", "alone"))["rows"]
    at_once = json.loads(ok(command, "tiny", "--policy", "policy.json", "--json", "--together", "3"))["rows"]
    assert at_once == alone
    assert asked == [1, 3]


def test_tune_rate_trains_with_each_rate() -> None:
    rows = json.loads(ok("tune-rate", "tiny", "--policy", "policy.json", "--json"))["rows"]
    assert [row["rate"] for row in rows] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    said = ok("tune-rate", "tiny", "--policy", "policy.json", "--rates", "0.25,0.5", "--seeds", "2")
    assert (
        "\nbest: rates 0.25 and 0.5, equal; 0.25 is the lowest; rates below 0.25 and above 0.5 were not tried\n" in said
    )
    assert re.search(r"^rate 0\.25 +0\.25 .* 2$", said, re.M)
    assert re.search(r"^rate 0\.5 +0\.5 .* 2 +\+0\.0000 ± 0\.0000$", said, re.M)


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ({0.1: 0.5, 0.2: 0.7, 0.3: 0.6}, "rate 0.2"),
        ({0.1: 0.5, 0.2: 0.6, 0.3: 0.7}, "rate 0.3; rates above 0.3 were not tried"),
        ({0.1: 0.7, 0.2: 0.6, 0.3: 0.6}, "rate 0.1; rates below 0.1 were not tried"),
        ({0.1: 0.7, 0.2: 0.6, 0.3: math.nan}, "rate 0.1; rates below 0.1 were not tried"),
        ({0.1: 0.5, 0.2: 0.7, 0.3: math.nan}, "rate 0.2"),
        ({0.0: 0.7, 0.5: 0.6, 1.0: 0.5}, "rate 0"),
        ({0.3: 0.5, 0.5: 0.6, 1.0: 0.7}, "rate 1"),
        ({0.5: 0.7, 0.4: 0.7, 0.3: 0.7, 0.2: 0.1, 0.6: 0.1}, "rates 0.3 to 0.5, equal; 0.3 is the lowest"),
        (
            {0.1: 0.1, 0.2: 0.7, 0.3: 0.6, 0.4: 0.7, 0.5: 0.7, 0.6: 0.2},
            "rates 0.2, 0.4 and 0.5, equal; 0.2 is the lowest",
        ),
        (
            {0.1: 0.6, 0.2: 0.7, 0.3: 0.7, 0.4: 0.7},
            "rates 0.2 to 0.4, equal; 0.2 is the lowest; rates above 0.4 were not tried",
        ),
    ],
)
def test_tune_rate_says_which_rates_are_equal_and_which_were_not_tried(
    rewards: dict[float, float], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(self: tiny_recipe.Training, policy: object, rate: float, *given: object) -> Scores:
        if math.isnan(rewards[rate]):
            raise FloatingPointError("train_loss is nan at step 7")
        return Scores(rewards[rate], {"validation_accuracy": rewards[rate]})

    monkeypatch.setattr(tiny_recipe.Training, "fit", fit)
    ask = ("tune-rate", "tiny", "--policy", "policy.json", "--rates", ",".join(map(str, rewards)))
    assert re.findall(r"^best: (.*)$", ok(*ask), re.M) == [told]
    lowest = re.search(r"[0-9.]+", told)
    assert lowest is not None
    assert json.loads(ok(*ask, "--json"))["best"] == f"rate {lowest[0]}"


def test_ablate_and_transfer() -> None:
    rows = json.loads(ok("ablate", "tiny", "--policy", "policy.json", "--json"))["rows"]
    assert rows[0]["variant"] == "whole"
    assert rows[-1]["variant"] == "none"
    rows = json.loads(ok("transfer", "tiny", "--policy", "policy.json", "--json"))["rows"]
    assert [row["variant"] for row in rows] == ["none", "policy"]
    assert Path("out/tiny/transfer/policy.json").exists()


def test_a_transferred_policy_has_the_rate_of_its_new_task() -> None:
    was = Provenance(rate=0.35, score=0.75, study="digits", note="score: mean of 5 new seeds")
    small_study.SPACE.sample(seed=3).model_copy(update={"provenance": was}).save("tuned.json")
    for given, expected in (((), 0.2), (("--rate", "0.5"), 0.5)):
        ok("transfer", "tiny", "--policy", "tuned.json", *given)
        moved = "out/tiny/transfer/policy.json"
        (row,) = json.loads(ok("train", "tiny", "--policy", moved, "--json"))["rows"]
        assert row["rate"] == expected
        found = load_policy(moved).provenance
        assert (found.study, found.score) == ("digits", None), "it was reached on another task"
        assert found.note == "transferred to tiny; before that: rate 0.35, score 0.75; score: mean of 5 new seeds"
    ok("transfer", "tiny", "--policy", "policy.json")
    assert load_policy(moved).provenance.rate == 0.2


def test_a_transfer_that_cannot_begin_leaves_no_policy() -> None:
    for given, message in (
        (("--policy", "policy.json", "--device", "gpu"), "got 'gpu'"),
        (("--policy", "other.json"), "a Transformer policy cannot go on a ConvNet"),
    ):
        assert message in refused("transfer", "tiny", *given)
        assert not Path("out").exists()


def test_a_policy_remembers_its_rate() -> None:
    sampled = small_study.SPACE.sample(seed=3)
    sampled.model_copy(update={"provenance": Provenance(rate=0.35)}).save("tuned.json")
    for command in ("train", "ablate", "transfer"):
        for given, expected in (((), 0.2 if command == "transfer" else 0.35), (("--rate", "0.1"), 0.1)):
            rows = json.loads(ok(command, "tiny", "--policy", "tuned.json", *given, "--json"))["rows"]
            assert {row["rate"] for row in rows} - {0.0} == {expected}, "of none it is 0"
    said = CliRunner().invoke(app, ["transfer", "tiny", "--policy", "tuned.json"]).stderr
    assert "rate 0.2 is the recipe's; the policy was found at 0.35: --rate 0.35 to keep that\n" in said
    said = CliRunner().invoke(app, ["transfer", "tiny", "--policy", "tuned.json", "--rate", "0.35"]).stderr
    assert "the recipe's" not in said


def test_a_package_that_is_missing_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "get", lambda name: digits())
    load.cache_clear()
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "scikit-learn: pip install scikit-learn" in refused("train", "tiny", "--smoke", "--device", "cpu")


def test_what_only_some_were_tested_by_is_left_out_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training alone counts top-5 accuracies, a crowd does not; scores of both may lie in one folder."""

    def fit(self: tiny_recipe.Training, regularizer: object, *given: object) -> Scores:
        top5 = {"test_top5": 0.9} if regularizer is None else {}
        return Scores(0.5, {"validation_accuracy": 0.5, "test_accuracy": 0.4} | top5)

    monkeypatch.setattr(tiny_recipe.Training, "fit", fit)
    said = ok("transfer", "tiny", "--policy", "policy.json", "--test")
    assert "test_accuracy" in said
    assert "test_top5" not in said


def test_no_command_judges_with_the_luck_of_another() -> None:
    seeds = [
        {row["seed"] for row in json.loads(ok(command, "tiny", "--policy", "policy.json", *more, "--json"))["rows"]}
        for command in ("tune-rate", "ablate", "transfer")
        for more in (("--seeds", "3"), ("--seeds", "3", "--first-seed", "7"))
    ]
    assert seeds[1::2] == [{7, 8, 9}] * 3
    commands = (experiments.tune_rate, experiments.ablate, experiments.transfer, confirming.confirm)
    firsts = [inspect.signature(command).parameters["first_seed"].default for command in commands]
    assert seeds[::2] == [set(range(first, first + 3)) for first in firsts[:3]]
    firsts.append(inspect.signature(experiments.train).parameters["seed"].default)
    apart = [second - first for first, second in pairwise(sorted(firsts))]
    assert min(apart) >= 100, "no two have one in common"


def test_a_rate_too_high_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(self: tiny_recipe.Training, *given: object) -> None:
        raise FloatingPointError("train_loss is nan at step 7")

    monkeypatch.setattr(tiny_recipe.Training, "fit", diverges)
    result = CliRunner().invoke(app, ["train", "tiny", "--policy", "policy.json"])
    assert result.exit_code == 1
    assert "policy, seed 0: diverged" in result.stderr
    assert "error: all have diverged: policy" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train", "tiny", "--rate", "0.3"), 1, "--rate 0.3: there is nothing to drop without --policy or --baseline"),
        (("train", "tiny", "--proxy", "--method", "mixup"), 1, "--proxy and --method mixup: choose one"),
        (("train", "nothing"), 2, "'nothing' is not one of tiny, other"),
        (("train", "tiny", "--policy", "missing.json"), 1, "missing.json"),
        (("train", "tiny", "--policy", "policy.json", "--baseline", "dropout"), 1, "choose one"),
        (("train", "tiny", "--baseline", "hope"), 1, "no baseline is called 'hope'"),
        (("tune-rate", "tiny", "--policy", "policy.json", "--rates", "0.1;0.2"), 1, "got '0.1;0.2'"),
        (
            ("tune-rate", "tiny", "--policy", "policy.json", "--rates", "0.1,1.5"),
            1,
            "[0, 1], each there once, got '0.1,1.5'",
        ),
        (("tune-rate", "tiny", "--policy", "policy.json", "--rates", "0.1,0.10"), 1, "got '0.1,0.10'"),
        (("train", "tiny", "--device", "gpu"), 1, "device must be one of torch's, as cpu, cuda or cuda:1, got 'gpu'"),
        (("train", "tiny", "--policy", "other.json"), 1, "a Transformer policy cannot go on a ConvNet"),
        (("tune-rate", "tiny", "--policy", "other.json"), 1, "a Transformer policy cannot go on a ConvNet"),
        (("train", "tiny", "--policy", "large.json"), 1, "the policy has 7 groups, the model has"),
        (
            ("train", "tiny", "--baseline", "word_dropout"),
            1,
            "word_dropout is for Transformers, and this model is a ConvNet",
        ),
        (("ablate", "tiny"), 2, "Missing option '--policy'"),
        (("train", "tiny", "--seed", str(2**63)), 2, "less than or equal to 9223372036854775807"),
        (("tune-rate", "tiny", "--policy", "policy.json", "--first-seed", str(2**63)), 2, "less than or equal to"),
        (("show", "policy.json", "--seed", str(2**63)), 2, "less than or equal to 9223372036854775807"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in refused(*arguments, code=code)
