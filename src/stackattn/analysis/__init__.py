"""Analysis of trained stacks.

Modules:
    traces           actions, attention weights, heights and automaton runs of a model's stacks on given inputs
    contents         probability that each pushed element is still on the stack
    real_stack       agreement of a stack with the stack of a hand-written automaton
    labelled_strings strings labelled with what should be on top of a stack, and the agreement with these labels
    loaded_runs      runs read from their folders: selecting and tracing strings, evaluation by length
    strings          selects and traces single strings of a language
    sentences        selects and traces sentences of a corpus, for language models and translation
    study            the analysis of one run or of a folder of runs
    text_stacks      what the stacks of a language model read: by distance, word class and related words
    report           HTML report, from the files in `page/`
    report_data      data of the report as JSON
    figures          figures of one string for print (needs the extra `plot`)
    attention_figure figure of attention weights for print
    drawings         all figures for print, and listings, of a studied run
    demo             measure and figure of `stackattn demo`
"""

from .attention_figure import attention_map
from .figures import save_figure
from .real_stack import Agreement, correct_steps, derivation_tops, measure_agreement, real_tops
from .traces import (
    NondeterministicTrace,
    StackTrace,
    StratifiedTrace,
    SuperpositionTrace,
    stack_names,
    trace_stacks,
)

__all__ = [
    "Agreement",
    "NondeterministicTrace",
    "StackTrace",
    "StratifiedTrace",
    "SuperpositionTrace",
    "attention_map",
    "correct_steps",
    "derivation_tops",
    "measure_agreement",
    "real_tops",
    "save_figure",
    "stack_names",
    "trace_stacks",
]
