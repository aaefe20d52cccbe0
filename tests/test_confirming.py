"""`ad.confirm`: the best policies of a search once more, with new seeds."""

import json
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import autodropout as ad
import small_study
from autodropout.recipes.comparison import Row, Variant
from autodropout.search.driver import Progress
from autodropout.search.study import Study
from autodropout.spaces import Policy
from autodropout.training.run import Scores

Child = Callable[[Policy, int], float]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Of 24 policies, whose scores are their worth and some luck."""

    def lucky(policy: Policy, seed: int) -> float:
        return small_study.score(policy) + (seed % 7) / 20

    url = f"sqlite:///{tmp_path}/study.db"
    return ad.search(small_study.SPACE, lucky, 24, rate=0.2, workers=2, storage=url, name="mine")


def child(log: Path, worth: Child = lambda policy, seed: small_study.score(policy)) -> Child:
    """One that leaves a line of each call."""

    def told(policy: Policy, seed: int) -> float:
        rate = None if policy.provenance is None else policy.provenance.rate
        with log.open("a") as file:
            file.write(json.dumps([small_study.SPACE.encode(policy), seed, rate]) + "\n")
        return worth(policy, seed)

    return told


def calls(log: Path) -> list[tuple[tuple[int, ...], int, float | None]]:
    return [(tuple(tokens), seed, rate) for tokens, seed, rate in map(json.loads, log.read_text().splitlines())]


def test_every_policy_and_none_at_all_are_trained_with_the_same_new_seeds(study: Study, tmp_path: Path) -> None:
    found = ad.confirm(study, child(tmp_path / "log"), top=4, seeds=3, workers=2)
    made = calls(tmp_path / "log")
    top = study.top(4)
    nothing = (0,) * len(small_study.SPACE.tokens)
    by_policy: dict[tuple[int, ...], list[int]] = {}
    for tokens, seed, _ in made:
        by_policy.setdefault(tokens, []).append(seed)
    assert set(by_policy) == {nothing, *(trial.record.tokens for trial in top)}
    seeds = set(by_policy[nothing])
    assert len(seeds) == 3
    assert all(sorted(of) == sorted(seeds) for of in by_policy.values())
    assert not seeds & {trial.record.seed for trial in study.trials}
    assert {rate for _, _, rate in made} == {0.2}
    best = max(top, key=lambda trial: small_study.score(trial.policy))
    assert found.best == f"trial {best.number}"
    assert found.policy is not None
    assert small_study.SPACE.encode(found.policy) == best.record.tokens
    known = found.policy.provenance
    assert known is not None
    assert (known.score, known.rate, known.trial) == (pytest.approx(small_study.score(best.policy)), 0.2, best.number)
    assert known.note == f"score: mean of 3 new seeds, the best of 4 such means; {best.value:.6g} in the search"
    said = str(found)
    assert re.search(r"^none +0 +0\.0000 ± 0\.0000 +3$", said, re.M)
    assert "4 policies had on average" in said
    assert said.splitlines()[-1].startswith(f"best: trial {best.number}, ")


def test_what_is_trained_is_not_trained_again(study: Study, tmp_path: Path) -> None:
    first = ad.confirm(study, child(tmp_path / "log"), top=2, seeds=1)
    assert len(calls(tmp_path / "log")) == 3
    more = ad.confirm(study, child(tmp_path / "log"), top=2, seeds=3)
    made = calls(tmp_path / "log")
    assert len(made) == len(set(made)) == 9
    assert {name: of.values[:1] for name, of in more.means.items()} == {n: of.values for n, of in first.means.items()}
    again = ad.confirm(study, child(tmp_path / "log"), top=2, seeds=3)
    assert len(calls(tmp_path / "log")) == 9
    assert str(again) == str(more)


def test_more_policies_and_a_search_that_went_on(study: Study, tmp_path: Path) -> None:
    """Only what is missing is trained; a child that has changed takes another name."""
    ad.confirm(study, child(tmp_path / "log"), top=2, seeds=1)
    more = ad.confirm(study, child(tmp_path / "log"), top=3, seeds=1)
    assert len(calls(tmp_path / "log")) == 4
    assert len(more.rows) == 4
    best, *_ = study.top(1)
    given = {"rate": 0.2, "storage": study.storage, "name": "mine"}
    study = ad.search(small_study.SPACE, lambda policy, seed: 10 + small_study.score(policy), 26, **given)
    assert study.top(1)[0].record.tokens != best.record.tokens
    found = ad.confirm(study, child(tmp_path / "log"), top=2, seeds=1)
    made = calls(tmp_path / "log")
    assert len(made) == len(set(made)) == 4 + 2
    assert len(found.rows) == 3, "of what was trained before only what is asked for now"
    ad.confirm(study, child(tmp_path / "log"), top=2, seeds=1, name="anew")
    assert len(calls(tmp_path / "log")) == 4 + 2 + 3


def test_policies_at_several_rates(study: Study, tmp_path: Path) -> None:
    """Each is a variant; what is left remembers its rate."""

    def worth(policy: Policy, seed: int) -> float:
        assert policy.provenance is not None
        assert policy.provenance.rate is not None
        return small_study.score(policy) * (1 - abs(policy.provenance.rate - 0.3))

    found = ad.confirm(study, child(tmp_path / "log", worth), top=2, seeds=2, rates=(0.1, 0.3))
    made = calls(tmp_path / "log")
    assert len(made) == (1 + 2 * 2) * 2, "no policy at all is trained once, whatever the rates"
    assert {rate for _, _, rate in made} == {0.1, 0.3}
    assert found.policy is not None
    assert found.policy.provenance is not None
    assert found.policy.provenance.rate == 0.3
    assert re.fullmatch(r"trial \d+ at 0\.3", str(found.best))
    assert "policies had" not in str(found), "scores at other rates are not compared"
    of_one = ad.Study(study.storage, "mine, confirmed at 0.3")
    assert len(of_one.trials) == 4
    assert of_one.info.drop_rate == 0.3


def test_no_policy_is_left_where_none_is_better_than_no_policy(study: Study, tmp_path: Path) -> None:
    found = ad.confirm(study, child(tmp_path / "log", lambda policy, seed: -small_study.score(policy)), top=2, seeds=2)
    assert found.policy is None
    assert str(found).splitlines()[-1] == "with new seeds none of them is better than no policy at all, 0.0000"


def test_a_policy_that_diverges_once_is_not_the_best(study: Study, tmp_path: Path) -> None:
    best = max(study.top(3), key=lambda trial: small_study.score(trial.policy))

    def worth(policy: Policy, seed: int) -> float:
        score = small_study.score(policy)
        return math.nan if score == small_study.score(best.policy) and seed % 2 else score

    found = ad.confirm(study, child(tmp_path / "log", worth), top=3, seeds=6)
    assert {seed % 2 for _, seed, _ in calls(tmp_path / "log")} == {0, 1}
    assert found.means[f"trial {best.number}"].diverged
    assert found.best not in (None, f"trial {best.number}")
    assert re.search(rf"^trial {best.number} .* \d of 6", str(found), re.M)


def test_a_search_whose_rate_only_the_child_knows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    study = ad.search(small_study.SPACE, small_study.child, 8, proposer="random", storage=url)
    found = ad.confirm(study, child(tmp_path / "log"), top=1, seeds=1)
    assert {rate for _, _, rate in calls(tmp_path / "log")} == {None}
    assert str(found).splitlines()[0].split() == ["variant", "score", "±", "s.e.", "n", "minus", "none,", "±", "95%"]
    assert found.policy is not None
    assert found.policy.provenance is not None
    assert found.policy.provenance.rate is None


def test_a_lead_that_seeds_could_explain_is_not_called_one(study: Study, tmp_path: Path) -> None:
    noisy = child(tmp_path / "log", lambda policy, seed: small_study.score(policy) + seed % 1_000)
    found = ad.confirm(study, noisy, top=1, seeds=3, name="noisy")
    assert "not shown" not in str(found), "the same seeds deviate alike"
    noisy = child(tmp_path / "log", lambda policy, seed: small_study.score(policy) * (1 + seed % 1_000))
    told = str(ad.confirm(study, noisy, top=1, seeds=3, name="noisier")).splitlines()[-1]
    assert re.match(r"that it is better than no policy is not shown by so few seeds: \+\d+\.\d{4} ± \d+\.\d{4}$", told)


def test_ctrl_c_leaves_what_there_is(study: Study, tmp_path: Path) -> None:
    """The children under way end, other rates are not begun, and the same call does the rest."""
    told = []

    def interrupt(progress: Progress) -> None:
        if not told and progress.scored:
            told.append(progress.scored)
            os.kill(os.getpid(), signal.SIGINT)

    given = {"top": 2, "seeds": 2, "rates": (0.1, 0.3)}
    found = ad.confirm(study, child(tmp_path / "log"), watch=interrupt, **given)
    assert told
    assert 0 < len(found.rows) < 6
    assert {rate for _, _, rate in calls(tmp_path / "log")} == {0.1}
    assert len(ad.confirm(study, child(tmp_path / "log"), **given).rows) == 10
    assert len(calls(tmp_path / "log")) == 10


def test_nothing_is_concluded_before_there_is_a_score_without_a_policy(study: Study) -> None:
    trial = study.top(1)[0]
    row = Row(Variant("trial", None, 0.2), 7, Scores(0.5, {}))
    found = ad.Confirmation([row], {"trial": trial}, {"trial": 0.2})
    assert found.policy is None
    assert str(found).splitlines()[-1] == "there is no score yet that policies could be compared by"


def test_crowds(study: Study, tmp_path: Path) -> None:
    class Crowd:
        def __call__(self, policy: Policy, seed: int) -> float:
            raise AssertionError("jobs are crowds")

        def train_many(self, policies: list[Policy], seeds: list[int], reports: object) -> list[float]:
            with (tmp_path / "log").open("a") as file:
                file.write(f"{len(policies)}\n")
            return [small_study.score(policy) for policy in policies]

    found = ad.confirm(study, Crowd(), top=4, seeds=2, job=5)
    assert (tmp_path / "log").read_text().split() == ["5", "5"]
    assert len(found.rows) == 10


def test_what_cannot_be_confirmed(study: Study, tmp_path: Path) -> None:
    for given, said in (
        ({"top": 0}, "top must be a positive integer, got 0"),
        ({"seeds": 1.5}, "seeds must be a positive integer, got 1.5"),
        ({"rates": (0.1, 0.1)}, r"no two the same, got \(0.1, 0.1\)"),
        ({"rates": ()}, r"one or more, and no two the same, got \(\)"),
        ({"rates": (0.0,)}, r"a rate must be a number in \(0, 1\], got 0.0"),
        ({"engine": "cloud"}, "'cloud'"),
        ({"workers": 0}, "workers must be a positive integer, got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            ad.confirm(study, small_study.child, **given)  # type: ignore[arg-type]
    url = f"sqlite:///{tmp_path}/other.db"
    nothing = ad.search(small_study.SPACE, lambda policy, seed: math.nan, 2, proposer="random", storage=url)
    with pytest.raises(ValueError, match="study 'study' has no scored trial yet"):
        ad.confirm(nothing, small_study.child)


def test_a_child_that_always_fails_says_so(study: Study) -> None:
    def broken(policy: Policy, seed: int) -> float:
        raise KeyError("a mistake")

    with pytest.raises(ad.ChildError, match="a mistake"):
        ad.confirm(study, broken, top=1, seeds=1)
    found = ad.confirm(study, small_study.child, top=1, seeds=1)
    assert len(found.rows) == 2, "a corrected child goes on"


def test_a_policy_whose_child_always_dies_is_left_out(study: Study, tmp_path: Path) -> None:
    """Others stand in for what failed, so that it comes to an end; the next call tries it again."""
    top = study.top(2)

    def deadly(policy: Policy, seed: int) -> float:
        if small_study.SPACE.encode(policy) == top[0].record.tokens:
            raise MemoryError("too large")
        return small_study.score(policy)

    found = ad.confirm(study, child(tmp_path / "log", deadly), top=2, seeds=2, attempts=1)
    assert {name: len(of.values) for name, of in found.means.items()} == {"none": 2, f"trial {top[1].number}": 2}
    assert found.best == f"trial {top[1].number}"
    found = ad.confirm(study, child(tmp_path / "log"), top=2, seeds=2)
    assert len(found.rows) == 6
