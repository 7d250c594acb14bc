"""A trained translation model with its tokenizer: translation, and evaluation on a test set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ..extras import import_extra
from ..files import bytes_writer, json_text, write_together
from ..models import Seq2SeqTransformer
from ..models.generation import beam_search
from ..models.saving import load
from ..text.batching import pad, token_batches
from ..text.bitext import normalise
from ..text.pieces import PieceTokenizer
from .devices import find_device
from .metrics import perplexity
from .mt import Pairs
from .run import model_folder


@dataclass(frozen=True)
class Translator:
    """Translates sentences by beam search.

    Example:
        >>> Translator.load("runs/mt").translate(["Guten Tag."])  # doctest: +SKIP
    """

    model: Seq2SeqTransformer
    tokenizer: PieceTokenizer
    beam_size: int = 4
    max_tokens: int = 256
    """Maximum number of tokens of a translation, including EOS."""
    batch_tokens: int = 2048
    """Maximum number of source tokens, including padding, that are translated at once."""

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", **options: int) -> Translator:
        """Load a model and its tokenizer.

        Args:
            folder: folder of a saved model, or of a run, whose best model is loaded.
            device: a PyTorch device.
            options: `beam_size`, `max_tokens` and `batch_tokens`.

        Raises:
            FileNotFoundError: there is no model, or it has no tokenizer.
            RunError: the run has no best model.
            ValueError: the model is not a translation model with this tokenizer, or the device is not available.
        """
        folder = model_folder(folder)
        model = load(folder)
        if not isinstance(model, Seq2SeqTransformer):
            raise ValueError(
                f"{folder}: expected a model trained by `stackattn mt train`, found a {type(model).__name__}"
            )
        tokenizer = PieceTokenizer.load(folder)
        sizes = tokenizer.input_size, tokenizer.output_size
        if sizes != (model.config.input_size, model.config.output_size):
            expected = model.config.input_size, model.config.output_size
            raise ValueError(
                f"{folder}: expected a tokenizer with (input, output) sizes {expected}, as the model has, got {sizes}"
            )
        return cls(model.to(find_device(device)), tokenizer, **options)

    def translate(self, sentences: Sequence[str], done: Callable[[int], None] = lambda count: None) -> list[str]:
        """Return the translations in the order of the sentences; that of a blank sentence is empty.

        `done` is called first with the number of blank sentences, and then with the number of sentences of each batch.
        """
        results = [""] * len(sentences)
        full = [i for i, sentence in enumerate(sentences) if sentence.strip()]
        done(len(sentences) - len(full))
        sources = self.tokenizer.encode_source([normalise(sentences[i]) for i in full])
        costs = [len(source) + 1 for source in sources]
        # Longest first: the estimate of the remaining time is conservative, and a lack of memory is noticed early.
        for batch in reversed(token_batches(costs, costs, self.batch_tokens)):
            for i, text in zip(batch, self._translate([sources[i].tolist() for i in batch]), strict=True):
                results[full[i]] = text
            done(len(batch))
        return results

    def translate_lines(
        self, lines: Iterable[str], chunk: int, done: Callable[[int], None] = lambda count: None
    ) -> Iterator[str]:
        """Yield the translations of a stream of lines, which is read `chunk` lines at a time."""
        lines = iter(lines)
        while part := list(islice(lines, chunk)):
            yield from self.translate(part, done)

    def _translate(self, sources: list[list[int]]) -> list[str]:
        device = next(self.model.parameters()).device
        tokens, lengths = pad([[*source, self.tokenizer.eos] for source in sources], self.tokenizer.pad)
        prompts = torch.full((len(sources), 1), self.tokenizer.bos, device=device)
        with torch.no_grad():
            state = self.model.initial_state(*(x.to(device, non_blocking=True) for x in (tokens, lengths)))
        found = beam_search(
            self.model,
            prompts,
            state,
            eos=self.tokenizer.eos,
            beam_size=self.beam_size,
            max_new_tokens=self.max_tokens,
        )
        return [self.tokenizer.decode(sentence.tokens) for sentence in found]

    def evaluate(
        self, source: Sequence[str], reference: Sequence[str], done: Callable[[int], None] = lambda count: None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the metrics (BLEU, chrF and the perplexity of the references) and the translations.

        `done` is that of `translate`.

        Raises:
            ModuleNotFoundError: sacreBLEU is not installed.
            ValueError: there are no sentences.
        """
        if not source:
            raise ValueError("source: expected at least one sentence to translate, got none")
        metrics = _metrics()
        began = time.monotonic()
        translations = self.translate(source, done)
        seconds = time.monotonic() - began
        pairs = Pairs(self.tokenizer, *([normalise(x) for x in side] for side in (source, reference)))
        with torch.no_grad():
            nats = pairs.cross_entropy(self.model, self.batch_tokens)
        found: dict[str, Any] = {"sentences": len(source), "perplexity": perplexity(nats)}
        for name, metric in metrics.items():
            found[name] = metric.corpus_score(translations, [list(reference)]).score
            found[f"{name}_signature"] = str(metric.get_signature())
        found |= {"beam_size": self.beam_size, "max_tokens": self.max_tokens, "translation_seconds": round(seconds, 2)}
        found["parameters"] = sum(x.numel() for x in self.model.parameters())
        return found, translations


def write_scores(name: Path, scores: dict[str, Any], translations: Sequence[str]) -> None:
    """Write translations to NAME.txt and scores to NAME.json together, so that both belong to the same evaluation."""
    name.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{text}\n" for text in translations)
    write_together(
        {
            name.with_name(f"{name.name}.txt"): bytes_writer(text.encode()),
            name.with_name(f"{name.name}.json"): bytes_writer(json_text(scores).encode()),
        }
    )


def _metrics() -> dict[str, Any]:
    metrics = import_extra("sacrebleu", "text", "scoring translations").metrics
    return {"bleu": metrics.BLEU(), "chrf": metrics.CHRF()}
