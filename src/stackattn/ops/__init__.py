"""Operators: functions and immutable states on tensors, without parameters.

Most of them compute attention weights or readings from the actions on a stack. The others are parts of ordinary
networks: softmax attention, dropout, cross-entropy, linear maps and LSTMs.

- superposition.py: `superposition_weights`, `superposition_readings`
- nondeterministic.py: `nondeterministic_weights`
- stratified.py: `stratified_weights`, `stratified_readings`, `StratifiedState`
- readings.py: readings of the nondeterministic stack without its attention weights: `nondeterministic_readings`
- vectors.py: readings of the superposition stack without its attention weights
- window.py: the nondeterministic stack with a window
- attention.py: causal softmax attention with dropout; dropout.py: dropout; lstm.py: LSTMs with a stack
- linear.py: linear maps that are fast on AMD processors
- cross_entropy.py: cross-entropy of many classes
- keep_mask.py: the random numbers of dropout
- states.py: the superposition and nondeterministic stacks step by step; extension.py: the operator that extends them,
  with its gradient
- tensor_state.py: base class of the operators' states
- reading_states.py: stacks step by step that return readings instead of attention weights
- documents.py: several documents in one row: `by_documents`
- runs.py: single runs of the nondeterministic stack
- reference.py: the paper's equations, literal and slow; the oracle for the tests
- dispatch.py: the available backends, and which one to use
- eager.py: when the kernel can be called without PyTorch's dispatcher
- registration.py: registration with PyTorch (autograd, torch.compile, vmap)
- checks.py: validation of arguments; immediate.py: when values are checked
- lengths.py: valid steps of padded sequences
- transitions.py: the three transition tensors joined into one
- pytorch/: the charts in plain PyTorch, for any device
- cpp/: the charts in C++, for the CPU
- triton_backend/: the charts in Triton, for GPUs
- memory.py: the limit on the memory of charts, and the error if there is too little memory
- caller.py: warnings that point to the caller's code

NOTATION.md explains the letters.
"""

from .attention import causal_attention
from .dispatch import backends
from .documents import by_documents
from .immediate import immediate_checks
from .nondeterministic import nondeterministic_weights
from .reading_states import NondeterministicReadingState, SuperpositionReadingState
from .readings import nondeterministic_readings
from .runs import AutomatonRun, Operation, best_runs, sample_runs
from .states import NondeterministicState, SuperpositionState
from .stratified import StratifiedState, stratified_readings, stratified_weights
from .superposition import superposition_readings, superposition_weights

__all__ = [
    "AutomatonRun",
    "NondeterministicReadingState",
    "NondeterministicState",
    "Operation",
    "StratifiedState",
    "SuperpositionReadingState",
    "SuperpositionState",
    "backends",
    "best_runs",
    "by_documents",
    "causal_attention",
    "immediate_checks",
    "nondeterministic_readings",
    "nondeterministic_weights",
    "sample_runs",
    "stratified_readings",
    "stratified_weights",
    "superposition_readings",
    "superposition_weights",
]
