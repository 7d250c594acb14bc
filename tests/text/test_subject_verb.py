"""Minimal pairs for subject-verb agreement, and what they measure."""

from collections import Counter

import pytest
import torch
from torch import nn

from stackattn.cli import main
from stackattn.models import TransformerLM, TransformerLMConfig, save
from stackattn.text.subject_verb import NOUNS, PREPOSITIONS, VERBS, minimal_pairs
from stackattn.text.vocabulary import Vocabulary
from stackattn.training.lm import subject_verb_agreement

WORDS = ("the", *PREPOSITIONS, *(word for pair in (*NOUNS, *VERBS) for word in pair))
NUMBER = {word: plural for pair in (*NOUNS, *VERBS) for plural, word in enumerate(pair)}


def test_the_right_verb_agrees_with_the_subject_and_the_wrong_one_does_not():
    pairs = minimal_pairs(30)
    conditions = Counter((pair.attractors, pair.misleading) for pair in pairs)
    assert conditions == {(0, False): 30, (1, False): 30, (1, True): 30, (2, False): 30, (2, True): 30}
    for pair in pairs:
        subject, *others = (NUMBER[word] for word in pair.beginning.split() if word in NUMBER)
        assert (NUMBER[pair.right], NUMBER[pair.wrong]) == (subject, 1 - subject)
        assert others == [subject ^ pair.misleading] * pair.attractors
    assert minimal_pairs(30) == pairs != minimal_pairs(30, seed=1)


def test_only_known_words_are_used():
    known = {"the", "near", "is", "are", "film", "films", "game", "games", "ship", "ships"}
    assert {word for pair in minimal_pairs(20, known=known.__contains__) for word in pair.beginning.split()} <= known
    with pytest.raises(ValueError, match="got nouns: 0, verbs: 1, prepositions: 1"):
        minimal_pairs(1, known={"the", "near", "is", "are"}.__contains__)


class LastNoun(nn.Module):
    """Predicts verbs in the number of the last noun."""

    def __init__(self, vocabulary):
        super().__init__()
        self.types = vocabulary.types
        self.size = vocabulary.output_size

    def forward(self, tokens, lengths):
        logits = torch.zeros(*tokens.shape, self.size)
        for row, sentence in zip(logits, tokens.tolist(), strict=True):
            number = None
            for at, token in enumerate(sentence):
                word = self.types[token] if token < len(self.types) else ""
                number = NUMBER.get(word, number)
                if number is not None:
                    for pair in VERBS:
                        row[at, self.types.index(pair[number])] = 2.0
        return logits


def test_a_model_that_looks_at_the_last_noun_is_misled():
    vocabulary = Vocabulary(("<unk>", *WORDS), unknown="<unk>")
    rows = subject_verb_agreement(LastNoun(vocabulary), vocabulary, 20)
    assert [row["accuracy"] for row in rows] == [1, 1, 0, 1, 0]
    assert [round(row["margin"], 5) for row in rows] == [2, 2, -2, 2, -2]
    assert all(row["sentences"] == 20 for row in rows)


def test_the_command(tmp_path, capsys):
    vocabulary = Vocabulary(("<unk>", *WORDS), unknown="<unk>")
    sizes = {"input_size": vocabulary.input_size, "output_size": vocabulary.output_size}
    save(TransformerLM(TransformerLMConfig(**sizes, layers=1, d_model=8, heads=2)), tmp_path)
    vocabulary.save(tmp_path)
    assert main(["lm", "agreement", "--model", str(tmp_path), "--number", "5"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("misleading") == 2
    assert printed.count("like the subject") == 2
