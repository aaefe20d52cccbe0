"""The numbers under every curve: what counts as a score, and in which order."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from report_tools import SPACE, diverged, failed, scored, write_study

from autodropout.report.history import read_history
from autodropout.report.sections import best_policies, token_shares
from autodropout.search.ledger import Ledger
from autodropout.search.states import State


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


def test_best_so_far_follows_the_order_of_finishing_and_own_scores(tmp_path: Path) -> None:
    outcomes = [scored(0.5), scored(0.9, stopped=True), scored(0.4), diverged(0.95), scored(0.7), failed()]
    reader = write_study(url(tmp_path), outcomes, finish_order=[2, 1, 0, 3, 5, 4], waiting=2)
    history = read_history(reader)
    assert history.scored.tolist() == [2, 1, 0, 3, 4]
    assert history.best_so_far().tolist() == [0.4, 0.4, 0.5, 0.5, 0.7]  # neither the stopped nor the diverged one
    assert history.own.tolist() == [True, False, True, False, True, False, False, False]
    assert history.count(State.WAITING) == 2
    assert len(history) == 8
    ended = reader.ended()
    assert (ended.scored, ended.stopped, ended.diverged, ended.total) == (3, 1, 1, 5)
    assert str(ended) == "3 scored, 1 stopped early, 1 diverged"


def test_there_is_no_best_before_an_own_score(tmp_path: Path) -> None:
    history = read_history(write_study(url(tmp_path), [diverged(0.1), scored(0.0)]))
    np.testing.assert_array_equal(history.best_so_far(), [np.nan, 0.0])


def test_a_study_without_trials(tmp_path: Path) -> None:
    history = read_history(write_study(url(tmp_path), []))
    assert len(history) == len(history.scored) == len(history.best_so_far()) == 0
    assert history.tokens.shape == (0, 16)
    assert best_policies(history, 5) == []


def test_shares_of_token_values_per_window(tmp_path: Path) -> None:
    first, second = (0,) * 16, (4, *(1,) * 15)
    strings = [first] * 4 + [first, second, second, second]
    history = read_history(write_study(url(tmp_path), [scored(0.1)] * 8, tokens=strings, minibatch=4))
    shares = token_shares(history)
    assert [share.shape for share in shares] == [(len(token.values), 2) for token in SPACE.tokens]
    assert shares[0].tolist() == [[1.0, 0.25], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.75]]
    for share in shares:
        np.testing.assert_allclose(share.sum(axis=0), 1.0)


def test_more_trials_than_windows_are_all_counted(tmp_path: Path) -> None:
    history = read_history(write_study(url(tmp_path), [scored(0.1)] * 203, minibatch=1))
    assert token_shares(history)[0].shape == (5, 48)


def test_a_policy_tried_twice_is_ranked_once(tmp_path: Path) -> None:
    same = SPACE.encode(SPACE.sample(0))
    outcomes = [scored(0.5), scored(0.8), scored(0.6), scored(0.9, stopped=True), diverged()]
    history = read_history(
        write_study(url(tmp_path), outcomes, tokens=[same, SPACE.encode(SPACE.sample(1)), same, same])
    )
    first, second = best_policies(history, 5)
    assert (first.trial, first.values.tolist()) == (1, [0.8])
    assert (second.trial, second.values.tolist()) == (2, [0.5, 0.6])
    assert tuple(history.tokens[second.trial]) == same
    assert [entry.trial for entry in best_policies(history, 1)] == [1]


def test_the_best_policies_are_those_of_the_studys_top(tmp_path: Path) -> None:
    """Two that do the same are one, and what drops nothing is none, whatever its tokens without effect say."""
    pattern, none, other = (1,) * 8, (0,) * 8, (0, *(1,) * 7)  # `other` has no size, so its tokens have no effect
    strings = [none + other, pattern + none, pattern + other, none + pattern]
    reader = write_study(url(tmp_path), [scored(0.9), scored(0.5), scored(0.7), scored(0.6)], tokens=strings)
    ranked = best_policies(read_history(reader), 5)
    assert [(entry.trial, entry.values.tolist()) for entry in ranked] == [(2, [0.5, 0.7]), (3, [0.6])]
    assert [entry.trial for entry in ranked] == [trial.number for trial in reader.distinct(5)]


def test_a_real_study(storage: str) -> None:
    with Ledger(storage) as ledger:
        reader = ledger.read("small")
        history, best = read_history(reader), reader.best()
    assert best is not None
    assert history.best_so_far()[-1] == best.value == best_policies(history, 1)[0].values.max()
    assert np.all(np.diff(history.best_so_far()) >= 0)
    now = datetime.now(UTC).timestamp()
    assert np.all(history.finished <= now)
