"""Language models: the search on Penn Treebank, the final training there, and the policy's transfer to WikiText-2.

Numbers are the paper's (section "Language Model and Machine Translation"; appendix, "Language Model") unless a comment
says otherwise. Its perplexities, on the validation and the test text:

                            learned policy     Variational Dropout
    Penn Treebank           58.1    54.9       59.1    56.0
    WikiText-2              62.7    59.9       63.9    61.4

The text trains the found policy for 300,000 steps, the appendix for 320,000; the appendix, which says more of the
training, is followed. Its learning rate falls to 1e-4 and then stays at 5e-5: half of it, and we keep the step.

The paper has AWD-LSTM's penalties on hidden states, and does not say their weights. AWD-LSTM's own, 2 and 1, are for
the small states of an LSTM; ours are normalized to a mean square of 1, so that these penalties outweigh the
cross-entropy: small models hardly learned with them. A hundredth of them is taken, which costs little; the paper, too,
saw no loss without them.

Beside them stands a small model, ours: what one GPU can search with (`studies/proxy.py`).

    scores = search_training().fit(policy, RATE, seed=0)
"""

from dataclasses import replace

from autodropout.models.transformer_xl import TransformerXLSize
from autodropout.training.language import LanguageTraining

SEARCH_STEPS = 160_000
FINAL_STEPS = 320_000
RATE = 0.2  # of policies and baselines; embedding and softmax have their own

TRANSFORMER_XL = TransformerXLSize(
    layers=16,
    width=380,
    heads=10,
    head_size=38,
    inner=900,
    memory=70,  # as long as a segment; the paper does not say
    embedding_dropout=0.5,
    softmax_dropout=0.6,
)


def search_training() -> LanguageTraining:
    """What a child of the search on Penn Treebank does."""
    return ptb_transformer_xl(SEARCH_STEPS)


def final_training() -> LanguageTraining:
    """How the policy that was found is trained for the paper's table."""
    return ptb_transformer_xl(FINAL_STEPS)


def ptb_transformer_xl(steps: int) -> LanguageTraining:
    """Transformer-XL on Penn Treebank, 26 million parameters."""
    return LanguageTraining(
        corpus="ptb",
        vocabulary=10_000,
        size=TRANSFORMER_XL,
        segment=70,
        batch=16,
        steps=steps,
        lr=3e-4,
        lr_after_cosine=1e-4,
        lr_constant=5e-5,
        cosine_share=0.8,
        clip=0.25,  # Transformer-XL's code
        state_value=0.02,
        state_difference=0.01,
        evaluate_every=1_000,
        evaluation_batch=10,  # Transformer-XL's code
        evaluation_memory=70,
    )


SMALL = TransformerXLSize(layers=4, width=256, heads=8, head_size=32, inner=1024, memory=70)
SMALL_STEPS, SMALL_SEARCH_STEPS = 6_000, 3_000
SMALL_RATE = 0.05
SMALL_SEARCH_WORDS = 464_000  # half of the text


def ptb_small(steps: int = SMALL_STEPS) -> LanguageTraining:
    """A small Transformer-XL on Penn Treebank, 6 million parameters: nothing of it is the paper's.

    It has no dropout but a policy's, so that a search sees all of what a policy is worth, and no penalties. Without a
    warm-up most of its children learn how frequent words are, and nothing else (`studies/ptb/descent.py`).
    """
    return LanguageTraining(
        corpus="ptb",
        vocabulary=10_000,
        size=SMALL,
        segment=70,
        batch=16,
        steps=steps,
        lr=1e-3,
        lr_after_cosine=1e-4,
        lr_constant=5e-5,
        cosine_share=0.8,
        clip=0.25,
        state_value=0.0,
        state_difference=0.0,
        evaluate_every=max(1, steps // 8),
        evaluation_batch=16,
        evaluation_memory=70,
        warmup=min(200, steps // 5),
    )


def ptb_small_search(steps: int = SMALL_SEARCH_STEPS) -> LanguageTraining:
    """The same on half of the text: a second on a GPU for each of many.

    It orders policies as longer trainings on the whole text do, and regularization is worth ten seed deviations there
    (docs/results.md).
    """
    return replace(ptb_small(steps), training_words=SMALL_SEARCH_WORDS)


def wikitext2_transformer_xl(steps: int = FINAL_STEPS) -> LanguageTraining:
    """Transformer-XL on WikiText-2, 35 million parameters, to which Penn Treebank's policy is transferred.

    All else is as on Penn Treebank: the appendix describes both at once.
    """
    return replace(ptb_transformer_xl(steps), corpus="wikitext-2", vocabulary=33_278)
