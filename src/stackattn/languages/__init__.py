"""Formal languages: probabilistic context-free grammars that are sampled and scored exactly.

Who lives here: `notation` reads and writes grammars as text; `closure` (with `decimals`) removes empty and unary rules
without changing the distribution; `lengths`, `inside` and `sampling` compute with what is left; `parse` finds best
trees; `language` and `grammar` put it all behind one interface; `tasks` and `companions` are the ready languages,
`datasets` the files. Everything is numpy, randomness comes from an explicit `numpy.random.Generator`, logarithms are
natural, and lengths do not count an end-of-string symbol.
"""

from .companions import UniformLanguage
from .datasets import Dataset, evaluation_set, sample_batches, sample_every_length, training_sets
from .grammar import PCFG
from .language import Entropy, Language
from .notation import GrammarError, Rule
from .parse import Parse, Tree
from .tasks import (
    TASKS,
    dyck,
    get_language,
    hardest_cfl,
    is_grammar_file,
    marked_reversal,
    padded_reversal,
    unmarked_reversal,
)

__all__ = [
    "PCFG",
    "TASKS",
    "Dataset",
    "Entropy",
    "GrammarError",
    "Language",
    "Parse",
    "Rule",
    "Tree",
    "UniformLanguage",
    "dyck",
    "evaluation_set",
    "get_language",
    "hardest_cfl",
    "is_grammar_file",
    "marked_reversal",
    "padded_reversal",
    "sample_batches",
    "sample_every_length",
    "training_sets",
    "unmarked_reversal",
]
