"""Formal languages: probabilistic context-free grammars with exact sampling and scoring.

Modules:

    language      the base class of all languages: strings, prefixes, next-symbol distributions
    grammar       `PCFG`, a grammar as a distribution over strings
    notation      grammars as text
    exact         exact numbers of bounded size
    closure       removal of empty and unary rules without changing the distribution
    decimals      matrices of high-precision decimals, for `closure`
    lengths       probabilities and entropies for each length
    inside        the inside algorithm: probabilities of strings
    continuations which symbols can follow each prefix
    sampling      drawing strings of given lengths
    parse         most probable derivations and their trees
    tasks         the languages of the experiments, by name
    companions    languages that are not context-free
    datasets      data sets of strings and their files

Arrays are NumPy arrays. Functions that draw random numbers take an explicit `numpy.random.Generator`, logarithms are
natural, and lengths do not include an end-of-string symbol.
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
