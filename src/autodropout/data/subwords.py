"""Subword vocabularies by SentencePiece, one for both languages, trained once and kept.

The paper gives the sizes, 10,000 for IWSLT'14 and 32,000 for WMT'14, and no more: the model is SentencePiece's default,
a unigram language model that covers 99.95% of the characters. Training reads the training text alone, at most
`SENTENCES` of it, evenly spaced rather than sampled, and always with the same number of threads (their sums are
floats): the same text gives the same vocabulary.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from autodropout.data.atomic import whole_file
from autodropout.data.bitext import Bitext

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SENTENCES = 5_000_000
THREADS = 2


class Subwords:
    """A trained vocabulary: text to ids and back."""

    def __init__(self, model: bytes) -> None:
        self.model = model  # all there is: it travels to worker processes
        self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def __reduce__(self) -> tuple[type["Subwords"], tuple[bytes]]:
        return Subwords, (self.model,)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, EOS at its end."""
        encoded: list[list[int]] = self._processor.encode(list(sentences), add_eos=True, num_threads=THREADS)
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first EOS. PAD and BOS leave no trace.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        kept = []
        for token in map(int, ids):
            if not 0 <= token < len(self):
                raise ValueError(f"the id {token} is outside the vocabulary of {len(self):,} subwords")
            if token == EOS:
                break
            kept.append(token)
        return str(self._processor.decode(kept))


def trained(text: Bitext, pieces: int, file: Path) -> Subwords:
    """The vocabulary in `file`, which is made from the text where it does not exist.

    Raises:
        ValueError: the text is empty, or too short for so many subwords.
    """
    if not file.exists():
        if pieces < 8:
            raise ValueError(f"a vocabulary needs at least 8 subwords, got {pieces}")
        with whole_file(file) as partial:
            partial.write_bytes(_train(text, pieces))
    try:
        return Subwords(file.read_bytes())
    except RuntimeError as error:
        raise ValueError(f"{file} is no SentencePiece model: delete it, and it is made again ({error})") from None


def _train(text: Bitext, pieces: int) -> bytes:
    total = sum(1 for _ in text)
    if not total:
        raise ValueError(f"{text.files[0]} holds no sentences")
    every = -(-2 * total // SENTENCES)
    model = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=_both(islice(text, 0, None, every)),
            model_writer=model,
            vocab_size=pieces,
            model_type="unigram",
            character_coverage=0.9995,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=THREADS,
            minloglevel=2,  # errors
        )
    except RuntimeError as error:
        raise ValueError(f"no vocabulary of {pieces:,} subwords from {text.files[0]}: {error}") from None
    return model.getvalue()


def _both(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (sentence for pair in pairs for sentence in pair if sentence)


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ModuleNotFoundError:
        raise ModuleNotFoundError("subwords need sentencepiece: pip install 'autodropout[translation]'") from None
    return sentencepiece
