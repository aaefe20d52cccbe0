"""The report: complete for every kind of study, self-contained, and harmless whatever a child wrote."""

import math
import re
from pathlib import Path

import pytest
from report_tools import SPACE, Page, diverged, failed, scored, write_study

import autodropout as ad
from autodropout.report.html import report_html, write_report
from autodropout.search.ledger import Ledger
from autodropout.search.reading import Reader
from autodropout.search.url import parse_url
from autodropout.spaces import ConvSpace, Space, TransformerSpace

SECTIONS = ("Best so far", "The best policies", "The proposer, update by update", "What was proposed, over time")
METRICS = {"mean_value": 0.5, "baseline": 0.4, "entropy": 40.0, "effective_size": 3.0, "clip_share": 0.1, "lag": 1.0}


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


def read(text: str) -> Page:
    """The page, checked for what no page may have."""
    page = Page(text)
    assert page.count("script") == page.count("link") == page.count("iframe") == page.count("a") == 0
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        source = attributes.get("src") or attributes.get("href")
        assert source is None or source.startswith("data:image/png;base64,"), source
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert "prefers-color-scheme: dark" in style[1]
    (policy,) = (a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    places = [page.text.find(heading) for heading in (*SECTIONS, "Failures", "Versions")]
    assert places == sorted(places)
    assert places[0] > 0
    return page


def test_a_policy_is_the_file_that_the_study_would_save(tmp_path: Path) -> None:
    write_study(url(tmp_path), [scored(0.5), scored(0.7)], attributes={"drop_rate": 0.2})
    study = ad.Study(url(tmp_path), "made")
    text = report_html(study.reader)
    assert study.best.policy.to_json() in read(text).text
    assert "<b>0.6</b><span>median score</span>" in text, "what the best is to be held against"


def test_a_real_study(storage: str, tmp_path: Path) -> None:
    with Ledger(storage) as ledger:
        reader = ledger.read("small")
        write_report(reader, tmp_path / "report.html", parse_url(storage))
        best = reader.best()
    page = read((tmp_path / "report.html").read_text())
    assert best is not None
    assert f"best score {best.value:.6g}, by trial {best.number}" in page.text
    for said in ("Entropy of a proposal", "Effective sample size", "clipped importance weights", "Policy lag", "mean"):
        assert said in page.text
    assert "2 groups (16x16, 8x8)" in page.text
    assert "who: a test" in page.text
    assert storage in page.text
    pictures = page.count("img")
    assert pictures >= 16 + 5  # a map for each token, a picture for each policy shown
    assert "None." in page.text  # failures


@pytest.mark.parametrize("space", [SPACE, TransformerSpace(), ConvSpace(groups=((7, 5),))])
@pytest.mark.parametrize("trials", [0, 1, 3])
def test_young_studies(tmp_path: Path, space: Space, trials: int) -> None:
    reader = write_study(url(tmp_path), [scored(0.5)] * trials, space=space)
    page = read(report_html(reader))
    assert ("no trial has a score yet" in page.text) == (trials == 0)
    assert "It has not learned yet." in page.text
    assert ("Nothing has been proposed yet." in page.text) == (trials == 0)


def test_words_instead_of_states_and_how_much_is_wanted(tmp_path: Path) -> None:
    outcomes = [scored(0.5), scored(0.4, stopped=True), failed()]
    page = read(report_html(write_study(url(tmp_path), outcomes, minibatch=1, waiting=1, attributes={"trials": 1200})))
    assert "1 waiting, 2 learned from, 1 failed" in page.text
    assert "2 of 1,200" in page.text
    assert "group 1, 16x16" in page.text
    assert "begun with" not in page.text
    assert "at most 16 trials are proposed and not yet finished" in page.text
    assert "a child that diverges counts as 0" in page.text
    assert "C, M" not in page.text


def test_what_a_study_was_begun_with_is_told_in_words(tmp_path: Path) -> None:
    kept = {"recipe": "digits", "engine": "local", "cpus_per_child": 1.0, "early_stopping": False, "rung": 1}
    kept |= {"deadline": 60.0, "drop_rate": 0.25, "data": None}
    page = read(report_html(write_study(url(tmp_path), [scored(0.5)], attributes=kept)))
    assert "begun withrecipe: digits, engine: local, deadline: 60" in page.text
    assert "drop rate0.25, of the children" in page.text
    for said in ("cpus", "rung", "_child"):
        assert said not in page.text.replace(SPACE.describe(), "")


def test_a_best_policy_that_drops_nothing_is_said_to(tmp_path: Path) -> None:
    nothing = (0,) * len(SPACE.tokens)
    page = read(report_html(write_study(url(tmp_path), [scored(0.5), scored(0.4)], tokens=[nothing])))
    assert "best score 0.5, by trial 0, whose policy drops nothing: no dropout was best." in page.text


@pytest.mark.parametrize("updates", [1, 4, 5])
def test_curves_of_few_updates_are_folded(tmp_path: Path, updates: int) -> None:
    text = report_html(write_study(url(tmp_path), [scored(0.5)] * updates, minibatch=1, metrics=METRICS))
    folded = 'so far, too few for curves to say much (5 of them)</summary><div class="charts">'
    assert (folded in text) == (updates < 5)
    read(text)


def test_a_study_whose_trials_all_wait_failed_or_diverged(tmp_path: Path) -> None:
    reader = write_study(url(tmp_path), [failed(), diverged(), failed("else")], waiting=3)
    page = read(report_html(reader))
    assert "No trial has a score of its own yet." in page.text
    assert "scored with the floor" in page.text
    assert "1trials ended" in page.text
    assert "1of them diverged" in page.text
    assert "1 finished and not yet learned from, 2 failed" in page.text
    assert "scored trials" not in page.text
    assert "given up" in page.text


@pytest.mark.parametrize(
    "metrics", [{}, {"mean_value": math.nan}, METRICS | {"entropy": math.inf}, {"something_new": 1e300}]
)
def test_whatever_a_proposer_records(tmp_path: Path, metrics: dict[str, float]) -> None:
    page = read(report_html(write_study(url(tmp_path), [scored(0.1 * i) for i in range(8)], metrics=metrics)))
    if not metrics:
        assert "It records nothing." in page.text
    if "something_new" in metrics:
        assert "Something new" in page.text


@pytest.mark.parametrize("values", [[0.0] * 5, [1e308, -1e308, 0.0], [5e-324] * 2, [1.0, 1.0 + 1e-15], [1e6, 1e6 + 1]])
def test_scores_of_any_size(tmp_path: Path, values: list[float]) -> None:
    text = report_html(write_study(url(tmp_path), [scored(value) for value in values]))
    read(text)
    assert "nan" not in re.sub('data:[^"]*|provenance', "", text)


HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> & \"quoted\" 'too' \x1b[31m \u2028"


def test_what_a_child_wrote_is_shown_and_does_nothing(tmp_path: Path) -> None:
    name = "<b onclick=alert(1)>study</b>"
    reader = write_study(
        url(tmp_path), [scored(0.5), failed(HOSTILE, f"Traceback\n{HOSTILE}")], name=name, attributes={"<i>": HOSTILE}
    )
    page = read(report_html(reader))
    assert page.text.count("<script>alert(1)</script>") == 3  # as text: message, traceback, attribute
    assert name in page.text


def test_equal_failures_are_told_once(tmp_path: Path) -> None:
    outcomes = [failed("same") for _ in range(20)] + [failed(f"other {i}") for i in range(25)]
    page = read(report_html(write_study(url(tmp_path), outcomes)))
    assert page.text.count("same") == 1
    assert "20 \N{MULTIPLICATION SIGN}" in page.text
    assert "45 trials whose last attempt failed or diverged." in page.text
    assert "And 6 other kinds." in page.text


def test_stopped_and_outlying_trials_are_told_apart(tmp_path: Path) -> None:
    outcomes = [scored(0.9 + i / 1000) for i in range(12)] + [scored(-50.0), scored(0.5, stopped=True), diverged()]
    page = read(report_html(write_study(url(tmp_path), outcomes)))
    assert "stopped early" in page.text
    assert "On the lower edge: 1 that scored lower still. Left out: 1 that diverged." in page.text


def test_no_password_is_shown(tmp_path: Path) -> None:
    address = parse_url("postgresql://me:hush-hush@host/database")
    reader = write_study(url(tmp_path), [failed("cannot reach hush-hush", "connect('hush-hush')")])
    text = report_html(reader, address)
    assert "hush-hush" not in text
    assert "postgresql://me:***@host/database" in text


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    reader = write_study(url(tmp_path), [])
    target = tmp_path / "report.html"
    target.write_text("before")
    write_report(reader, target)
    assert target.read_text().startswith("<!doctype html>")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_report(reader, tmp_path / "nowhere" / "report.html")


@pytest.mark.slow
def test_sixteen_thousand_trials_stay_one_small_page(tmp_path: Path) -> None:
    reader: Reader = write_study(
        url(tmp_path),
        [scored(math.sin(i)) if i % 100 else failed(f"number {i % 7}", "x" * 20_000) for i in range(16_384)],
        minibatch=16,
        metrics=METRICS,
    )
    text = report_html(reader)
    read(text)
    assert len(text) < 2**21
