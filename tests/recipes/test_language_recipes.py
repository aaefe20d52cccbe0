"""The language recipes: the paper's numbers, and a small size that runs anywhere."""

from dataclasses import replace
from pathlib import Path

import pytest

from autodropout.recipes.language import (
    RATE,
    TRANSFORMER_XL,
    final_training,
    search_training,
    wikitext2_transformer_xl,
)
from autodropout.training.language import LanguageTraining
from autodropout.training.run import Run
from autodropout.training.schedules import cosine_then_constant, first_step_after


def learning_rate(how: LanguageTraining, step: int) -> float:
    factors = cosine_then_constant(
        how.steps, floor=how.lr_after_cosine / how.lr, constant=how.lr_constant / how.lr, share=how.cosine_share
    )
    return how.lr * factors(step)


def test_the_papers_numbers() -> None:
    search, final, transfer = search_training(), final_training(), wikitext2_transformer_xl()
    assert (search.steps, final.steps, transfer.steps) == (160_000, 320_000, 320_000)
    assert replace(final, steps=search.steps) == search, "trained longer, and in nothing else"
    assert replace(transfer, corpus="ptb", vocabulary=10_000) == final
    assert (search.batch, search.segment, search.evaluate_every) == (16, 70, 1_000)
    assert (TRANSFORMER_XL.embedding_dropout, TRANSFORMER_XL.softmax_dropout, RATE) == (0.5, 0.6, 0.2)
    assert learning_rate(search, 0) == pytest.approx(3e-4)
    assert learning_rate(search, 64_000) == pytest.approx(2e-4), "halfway down the cosine"
    assert learning_rate(search, 127_999) == pytest.approx(1e-4)
    assert learning_rate(search, 128_000) == pytest.approx(5e-5) == learning_rate(search, 159_999)
    assert first_step_after(search.cosine_share, search.steps) == 128_000


def write(folder: Path, names: tuple[str, str, str], vocabulary: int) -> None:
    """Texts that count to the size of a vocabulary, `<eos>` included."""
    folder.mkdir()
    words = [f"w{number}" for number in range(vocabulary - 1)]
    for name in names:
        lines = (" ".join(words[at : at + 20]) for at in range(0, len(words), 20))
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", ["ptb", pytest.param("wikitext-2", marks=pytest.mark.slow)])
def test_the_small_size_trains(name: str, tmp_path: Path) -> None:
    if name == "ptb":
        how, names = search_training(), ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt")
    else:
        how, names = wikitext2_transformer_xl(), ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")
    write(tmp_path / name, names, how.vocabulary)
    small = replace(how.smoke(), data=tmp_path)
    scores = small.fit(small.space().sample(seed=0), RATE, 0, Run(device="cpu", test=True))
    assert scores.reward == pytest.approx(80 / scores.metrics["validation_perplexity"])
    assert 1 < scores.metrics["test_perplexity"] < 2 * how.vocabulary
