"""Traces compared with an enumeration of all runs, in which the stack is a Python list."""

import math
from itertools import product

import pytest
import torch

from stackattn import StratifiedState, stratified_weights
from stackattn.analysis import NondeterministicTrace, SuperpositionTrace, stack_names, trace_stacks
from stackattn.analysis.traces import TRACES, StratifiedTrace, trace_forward
from stackattn.models import LSTMLM, LSTMConfig, TransformerLM, TransformerLMConfig
from stackattn.nn import NondeterministicStackAttention
from stackattn.nn.kinds import STACK_KINDS


def enumerate_nondeterministic(push, replace, pop, t, window):
    """Return the weight of each run of t steps, the steps that pushed the elements of its stack, and its last action.

    The steps are listed from the bottom to the top; the action is 0 (push), 1 (replace) or 2 (pop).
    """
    runs = [(1.0, 0, [(None, 0)], None)]  # weight, state, stack of (pushing step, symbol), last action
    Q, S = push.shape[1:3]
    for step in range(t):
        longer = []
        for weight, q, stack, _ in runs:
            x = stack[-1][1]
            for r, y in product(range(Q), range(S)):
                longer.append((weight * push[step, q, x, r, y].exp().item(), r, [*stack, (step, y)], 0))
                kept = [*stack[:-1], (stack[-1][0], y)]
                longer.append((weight * replace[step, q, x, r, y].exp().item(), r, kept, 1))
            if len(stack) > 1 and (window is None or step + 1 - stack[-1][0] <= window):
                longer += [(weight * pop[step, q, x, r].exp().item(), r, stack[:-1], 2) for r in range(Q)]
        runs = longer
    return [(weight, [i for i, _ in stack[1:]], kind) for weight, _, stack, kind in runs]


def enumerate_superposition(actions, t, depth=None):
    """Return the same for the superposition stack."""
    runs = []
    for kinds in product(range(3), repeat=t):
        stack = []
        for step, kind in enumerate(kinds):
            if kind == 0:
                stack.append(step)
            elif kind == 2 and stack:
                stack.pop()
            stack = stack if depth is None else stack[-depth:]
        runs.append((math.prod(actions[i, k].item() for i, k in enumerate(kinds)), stack, kinds[-1]))
    return runs


def nondeterministic(T=4, Q=2, S=2, forbidden=0.0, window=None):
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, T, Q, S, Q, S), (2, T, Q, S, Q, S), (2, T, Q, S, Q))
    transitions = [2 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    transitions[2] += 1.5  # otherwise pops would be rare
    for x in transitions:
        x[torch.rand(x.shape, generator=generator) < forbidden] = -torch.inf
    trace = NondeterministicTrace("stack", 0, tuple(transitions), window)
    return trace, [lambda t, b=b: enumerate_nondeterministic(*(x[b] for x in transitions), t, window) for b in range(2)]


def superposition(T=6, depth=None):
    actions = torch.randn(2, T, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    trace = SuperpositionTrace("stack", 0, (actions,), depth)
    return trace, [lambda t, b=b: enumerate_superposition(actions[b], t, depth) for b in range(2)]


@pytest.mark.parametrize(
    "make",
    [
        nondeterministic,
        lambda: nondeterministic(3, 1, 3),
        lambda: nondeterministic(4, 2, 2, 0.4),
        lambda: nondeterministic(5, 2, 1, window=2),
        lambda: nondeterministic(4, 2, 2, window=3),
        superposition,
        lambda: superposition(depth=2),
    ],
)
def test_traces_are_sums_over_all_runs(make):
    trace, sequences = make()
    tops, actions, contents, heights = trace.tops(), trace.actions(), trace.contents(), trace.heights()
    for b, enumerate_runs in enumerate(sequences):
        for t in range(tops.shape[1]):
            runs = enumerate_runs(t + 1)
            total = sum(weight for weight, _, _ in runs)
            top, kinds, there = (torch.zeros(n, dtype=torch.float64) for n in (tops.shape[2], 3, contents.shape[2]))
            for weight, stack, kind in runs:
                top[stack[-1] + 1 if stack else 0] += weight / total
                kinds[kind] += weight / total
                there[stack] += weight / total
            height = sum(weight * len(stack) for weight, stack, _ in runs) / total
            torch.testing.assert_close(tops[b, t], top, atol=1e-12, rtol=0)
            torch.testing.assert_close(actions[b, t], kinds, atol=1e-12, rtol=0)
            torch.testing.assert_close(contents[b, t], there, atol=1e-12, rtol=0)
            assert heights[b, t].item() == pytest.approx(height)


def test_steps_that_no_run_reaches_have_no_actions():
    trace, _ = nondeterministic()
    push, replace, pop = (x.clone() for x in trace.steps)
    for x in (push, replace, pop):
        x[1, 2] = -torch.inf
    broken = NondeterministicTrace("stack", 0, (push, replace, pop), None)
    torch.testing.assert_close(broken.actions()[0], trace.actions()[0], rtol=0, atol=0)
    torch.testing.assert_close(broken.actions()[1, :2], trace.actions()[1, :2], rtol=0, atol=0)
    assert (broken.actions()[1, 2:] == 0).all()


def test_traces_have_the_window_of_the_layer():
    config = TransformerLMConfig(input_size=4, output_size=4, layers="1.nondeterministic-2-2-3w3", d_model=4, heads=1)
    model, tokens = TransformerLM(config), torch.randint(4, (2, 7))
    (trace,) = trace_stacks(model, tokens)
    assert trace.limit == 3
    (lstm_trace,) = trace_stacks(
        LSTMLM(LSTMConfig(input_size=4, output_size=4, stack="nondeterministic-1-2-2w3")), tokens
    )
    assert lstm_trace.limit == 3


def test_heights_of_long_sequences_match_samples():
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 30, 2, 3, 2, 3), (1, 30, 2, 3, 2, 3), (1, 30, 2, 3, 2))
    push, replace, pop = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    trace = NondeterministicTrace("stack", 0, (push, replace, pop + 2))
    samples = trace.sample_runs(2000, generator)[0]
    last = [len(run.stacks()[-1]) - 1 for run in samples]  # samples are complete runs: compare after the last step
    mean = sum(last) / len(last)
    error = (sum((x - mean) ** 2 for x in last) / len(last) / len(last)) ** 0.5
    assert abs(trace.heights()[0, -1].item() - mean) < 4 * error
    assert mean > 1


def test_transitions_beyond_the_range_of_exp():
    trace, _ = nondeterministic(12)
    big = NondeterministicTrace("stack", 0, tuple(1000 * x for x in trace.steps))
    for b, run in enumerate(big.best_runs()):  # one run has almost all the weight
        there = torch.zeros(12, dtype=torch.float64)
        there[[i for i, _ in run.stacks()[-1][1:]]] = 1
        torch.testing.assert_close(big.contents()[b, -1], there)
    assert big.actions().isfinite().all()


def test_superposition_runs():
    hard = torch.eye(3, dtype=torch.float64)[
        [2, 0, 0, 1, 2, 2, 2, 0]
    ]  # the stack is empty at the first and the last pop
    trace = SuperpositionTrace("stack", 0, (hard[None],))
    (best,), ((sample,),) = trace.best_runs(), trace.sample_runs(1)
    stacks = [[i for i, _ in stack[1:]] for stack in best.stacks()]
    assert stacks == [[], [1], [1, 2], [1, 2], [1], [], [], [7]]
    assert sample == best
    assert best.log_weight == 0
    assert trace.heights()[0].tolist() == [len(stack) for stack in stacks]
    assert best.listing("abcdefgh").split("\n") == [
        "a  pop",  # an empty stack: no indentation
        "b    push",
        "c      push",
        "d      no-op",
        "e      pop",
        "f    pop",
        "g  pop",
        "h    push",
    ]


def transformer(layers):
    torch.manual_seed(0)
    return TransformerLM(TransformerLMConfig(input_size=4, output_size=4, layers=layers, d_model=8, heads=2))


def test_traces_of_a_transformer():
    model = transformer("1.nondeterministic-2-3-4x2.1.superposition-5").train()
    tokens = torch.tensor([[3, 0, 1, 2, 0], [3, 2, 2, 1, 0]])
    traces = trace_stacks(model, tokens)
    assert model.training
    assert [trace.name for trace in traces] == ["layer 2, head 1", "layer 2, head 2", "layer 4"]
    assert stack_names(model) == [trace.name for trace in traces]
    layer = next(m for m in model.modules() if isinstance(m, NondeterministicStackAttention))
    seen = []
    layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    model.eval()(tokens)
    _, weights = layer(seen[0], return_weights=True)  # (B, heads, T, T + 1, Q, S)
    for head in range(2):
        torch.testing.assert_close(traces[head].split_tops(), weights[:, head].double(), atol=1e-5, rtol=0)
    for trace in traces:
        torch.testing.assert_close(trace.tops().sum(-1), torch.ones(2, 5, dtype=torch.float64))
        torch.testing.assert_close(trace.actions().sum(-1), torch.ones(2, 5, dtype=torch.float64))
    shorter = trace_stacks(model, tokens[:, :3])  # traces are causal
    torch.testing.assert_close(shorter[2].tops(), traces[2].tops()[:, :3, :4], atol=1e-5, rtol=0)


@pytest.mark.parametrize("stack", ["superposition-5", "nondeterministic-2-2-3", "nondeterministic-1-1-3"])
def test_traces_of_an_lstm(stack):
    """The weights of the trace give the reading that the model feeds back."""
    torch.manual_seed(0)
    model = LSTMLM(LSTMConfig(input_size=4, output_size=4, hidden_size=6, stack=stack)).eval()
    tokens = torch.tensor([[3, 0, 1, 2, 0], [3, 2, 2, 1, 0]])
    (trace,) = trace_stacks(model, tokens)
    assert trace.first == 1
    assert stack_names(model) == [trace.name] == ["LSTM stack"]
    assert trace.tops().shape == (2, 4, 5)  # BOS is not read
    with torch.no_grad():
        values, state = [], model.initial_state(2)
        for t in range(5):
            _, state = model.extend(tokens[:, t : t + 1], state)
            values.append(model.stack.to_value(state.hidden).sigmoid())
        _, state = model.extend(tokens[:, :1], state)  # reading any further token performs the last action
    pushed = torch.stack(values[1:], dim=1).double()  # (B, T, m)
    if isinstance(trace, SuperpositionTrace):
        reading = trace.tops()[:, -1, 1:].unsqueeze(1) @ pushed
    else:
        bottom = model.stack.bottom.detach().sigmoid().double().expand(2, 1, -1)
        reading = torch.einsum("biqs,bim->bqsm", trace.split_tops()[:, -1], torch.cat([bottom, pushed], 1))
    torch.testing.assert_close(state.stack.reading.double(), reading.flatten(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("stack", ["", "superposition-5", "nondeterministic-2-2-3"])
@torch.no_grad()  # as in a trace: with gradients, PyTorch's LSTM rounds differently on some processors
def test_the_output_is_that_of_the_model(stack):
    torch.manual_seed(0)
    lstm = LSTMLM(LSTMConfig(input_size=4, output_size=4, hidden_size=6, stack=stack or None))
    tokens = torch.tensor([[3, 0, 1, 2, 0], [3, 2, 2, 1, 0]])
    for model in (transformer(f"1.{stack}" if stack else "1"), lstm):
        logits, traces = trace_forward(model, tokens)
        assert torch.equal(logits, model.eval()(tokens))
        assert [trace.name for trace in traces] == stack_names(model)


def test_every_kind_of_stack_has_a_trace():
    assert list(TRACES) == list(STACK_KINDS)


def test_models_without_stacks():
    assert trace_stacks(transformer("2"), torch.tensor([[3, 0, 1]])) == []
    assert trace_stacks(LSTMLM(LSTMConfig(input_size=4, output_size=4, hidden_size=6)), torch.tensor([[3, 0, 1]])) == []


def test_runs_of_a_limited_superposition_stack():
    """Hard pushes and pops: the third push drops the first element."""
    actions = torch.zeros(1, 5, 3, dtype=torch.float64)
    actions[:, :3, 0] = actions[:, 3:, 2] = 1
    (run,) = SuperpositionTrace("stack", 0, (actions,), 2).best_runs()
    assert [[i for i, _ in stack[1:]] for stack in run.stacks()] == [[0], [0, 1], [1, 2], [1], []]


def test_stratified_trace():
    """Contents are the strengths that remain after each step, and the actions of a step add up to 1."""
    push, pop = torch.rand(2, 2, 6, dtype=torch.float64)
    trace = StratifiedTrace("stack", 0, (push, pop))
    torch.testing.assert_close(trace.tops()[..., 1:], stratified_weights(push, pop))
    torch.testing.assert_close(trace.actions()[..., 0], push)
    torch.testing.assert_close(trace.actions()[..., 2], (1 - push) * pop)
    torch.testing.assert_close(trace.actions().sum(-1), torch.ones(2, 6, dtype=torch.float64))
    for t in range(6):
        _, state = StratifiedState.empty(2).extend(push[:, : t + 1], pop[:, : t + 1])
        torch.testing.assert_close(trace.contents()[:, t, : t + 1], state.strengths)
        torch.testing.assert_close(trace.heights()[:, t], state.strengths.sum(-1))
        assert not trace.contents()[:, t, t + 1 :].any()
