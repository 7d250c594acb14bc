"""Best and sampled runs against the list of all runs."""

import math
import time
from collections import Counter

import pytest
import torch
from oracles import enumerate_runs, hard_transitions, random_steps, random_transitions

from stackattn.ops.pytorch.log_chart import log_chart, log_sum
from stackattn.ops.runs import AutomatonRun, Operation, best_runs, sample_runs


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def as_steps(run):
    return tuple((o.kind, o.state, -1 if o.symbol is None else o.symbol) for o in run.operations)


@pytest.mark.parametrize(("T", "Q", "S"), [(0, 2, 2), (1, 2, 2), (2, 3, 2), (3, 3, 3), (4, 2, 2), (5, 2, 2), (6, 1, 2)])
@pytest.mark.parametrize(("scale", "forbidden"), [(1, 0), (1, 0.3), (1000, 0.3)])
def test_the_best_run_is_the_best_of_all(T, Q, S, scale, forbidden):
    inputs = random_transitions(4, T, Q, S, scale, forbidden, seeded())
    inputs[2][:] += scale  # so that best runs do pop
    for b, run in enumerate(best_runs(*inputs)):
        runs = enumerate_runs(*(x[b : b + 1] for x in inputs))
        assert run.log_weight == max(runs.values())
        assert runs[as_steps(run)] == run.log_weight


@pytest.mark.parametrize("window", [1, 2, 3])
def test_the_best_run_in_a_window(window):
    inputs = random_transitions(4, 5, 2, 1, 1, 0, seeded())
    inputs[2][:] += 2.0
    runs = best_runs(*inputs, window=window)
    for b, run in enumerate(runs):
        allowed = enumerate_runs(*(x[b : b + 1] for x in inputs), window)
        assert run.log_weight == max(allowed.values()) == allowed[as_steps(run)]
    assert [run.log_weight for run in runs] != [run.log_weight for run in best_runs(*inputs)]
    with pytest.raises(ValueError, match="window: expected a positive integer, or None for no limit, got 0"):
        best_runs(*inputs, window=0)


@pytest.mark.parametrize(
    ("T", "Q", "S", "forbidden", "window"),
    [(3, 2, 2, 0, None), (5, 1, 2, 0, None), (4, 2, 2, 0.4, None), (5, 2, 1, 0.2, None), (5, 2, 1, 0.2, 3)],
)
def test_samples_follow_the_weights(T, Q, S, forbidden, window):
    inputs = random_transitions(1, T, Q, S, 1, forbidden, seeded(3))
    inputs[2][:] += 1.0
    log_weights = enumerate_runs(*inputs, window)
    total = math.log(math.fsum(map(math.exp, log_weights.values())))
    N = 6000
    (samples,) = sample_runs(*inputs, N, generator=seeded(), window=window)
    counts = Counter(map(as_steps, samples))
    assert sum(counts.values()) == N
    assert all(run.log_weight == log_weights[as_steps(run)] for run in samples)

    # Runs expected fewer than 5 times share a cell. Chi-squared has mean df and variance 2 df.
    expected = {run: N * math.exp(log_weight - total) for run, log_weight in log_weights.items()}
    common = [run for run in expected if expected[run] >= 5]
    cells = [(counts[run], expected[run]) for run in common]
    cells.append((N - sum(c for c, _ in cells), N - sum(e for _, e in cells)))
    chi_square = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 1)
    assert len(common) > 20
    assert abs(chi_square - (len(cells) - 1)) < 4 * math.sqrt(2 * (len(cells) - 1))


def test_samples_follow_the_attention_weights_of_longer_sequences():
    """The distribution of the last top element over many samples is that of the chart."""
    inputs = random_transitions(1, 25, 2, 2, 2, 0.2, seeded())
    inputs[2][:] += 2.0
    F = log_chart(*inputs, log_sum).F[0, :, 25].flatten(1).logsumexp(1)
    expected = (F - F.logsumexp(0)).exp()
    N = 2000
    (samples,) = sample_runs(*inputs, N, generator=seeded())
    shares = torch.zeros(26, dtype=torch.float64)
    for run in samples:
        shares[run.stacks()[-1][-1][0] + 1] += 1 / N
    assert ((shares - expected).abs() < 4.5 * (expected * (1 - expected) / N).sqrt() + 1e-9).all()
    assert (expected > 0.05).sum() >= 3


@pytest.mark.parametrize("otherwise", [-math.inf, -1000.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_forced_run_is_found(otherwise, seed):
    steps = random_steps(60, 3, 2, seeded(seed))
    inputs = [torch.where(x == 0, x, otherwise) for x in hard_transitions(steps, 3, 2)]
    (best,), (samples,) = best_runs(*inputs), sample_runs(*inputs, 2, generator=seeded())
    for run in (best, *samples):
        assert as_steps(run) == tuple(steps)
        assert run.log_weight == 0


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_choose_no_forbidden_run(monkeypatch, uniform):
    cases = [random_transitions(1, 8, 2, 2, 1, 0.5, seeded(seed)) for seed in range(10)]
    monkeypatch.setattr(torch, "rand", lambda shape, **kwargs: torch.full(shape, uniform, dtype=torch.float64))
    for inputs in cases:
        (samples,) = sample_runs(*inputs, 1)
        assert math.isfinite(samples[0].log_weight)


def test_extreme_logits():
    inputs = random_transitions(2, 60, 3, 2, 1000, 0.4, seeded())
    chart = log_chart(*inputs, torch.amax)
    bests, samples = best_runs(*inputs), sample_runs(*inputs, 3, generator=seeded())
    for b in range(2):
        assert bests[b].log_weight == pytest.approx(chart.alpha[b, 60].max().item(), rel=1e-13)
        assert all(run.log_weight <= bests[b].log_weight for run in samples[b])
        assert all(math.isfinite(run.log_weight) for run in samples[b])
        assert all(stack for stack in bests[b].stacks())


def test_a_sequence_without_runs_is_named():
    inputs = random_transitions(3, 4, 2, 2, generator=seeded())
    inputs[0][1, 0], inputs[1][1, 0] = -torch.inf, -torch.inf  # only popping the bottom is possible
    for function in (best_runs, lambda *x, **kw: sample_runs(*x, 1, **kw)):
        with pytest.raises(ValueError, match="sequence 1: expected a run of length 4, got none; allow more"):
            function(*inputs)
        assert len(function(*inputs, lengths=torch.tensor([4, 0, 4]))) == 3


def test_lengths():
    inputs = random_transitions(4, 6, 2, 2, generator=seeded())
    lengths = [6, 3, 0, 5]
    for x in inputs:
        for b, length in enumerate(lengths):
            x[b, length:] = torch.nan
    bests = best_runs(*inputs, lengths=torch.tensor(lengths))
    samples = sample_runs(*inputs, 5, lengths=torch.tensor(lengths), generator=seeded())
    for b, length in enumerate(lengths):
        (alone,) = best_runs(*(x[b : b + 1, :length] for x in inputs))
        assert bests[b] == alone
        assert {len(run.operations) for run in samples[b]} == {length}
    assert bests[2] == AutomatonRun((), 0.0)


def test_samples_repeat_with_the_seed():
    inputs = random_transitions(2, 10, 2, 2, generator=seeded())
    first, again = (sample_runs(*inputs, 4, generator=seeded(7)) for _ in range(2))
    assert first == again
    assert first != sample_runs(*inputs, 4, generator=seeded(8))
    assert len(set(first[0])) > 1


def test_ties_are_broken_the_same_way():
    inputs = [torch.zeros_like(x).repeat(3, 1, *[1] * (x.ndim - 2)) for x in random_transitions(1, 12, 2, 2)]
    first, *others = best_runs(*inputs)
    assert others == [first, first]
    assert best_runs(*inputs)[0] == first


@pytest.mark.parametrize("scale", [1, 1000])
def test_100_steps_take_less_than_1500_ms(scale):
    inputs = random_transitions(1, 100, 3, 3, scale, 0.1, seeded())
    started = time.process_time()
    best_runs(*inputs)
    best_took, started = time.process_time() - started, time.process_time()
    sample_runs(*inputs, 10, generator=seeded())
    assert best_took < 1.5
    assert time.process_time() - started < 1.5


def test_low_precision_and_gradients():
    inputs = [x.requires_grad_() for x in random_transitions(1, 6, 2, 2, dtype=torch.float32, generator=seeded())]
    (run,) = best_runs(*inputs)
    assert run == best_runs(*(x.detach().double() for x in inputs))[0]


def test_replay_and_text():
    operations = [("push", 1, 2), ("replace", 0, 1), ("push", 0, 0), ("pop", 1), ("pop", 0), ("replace", 2, 2)]
    run = AutomatonRun(tuple(Operation(*operation) for operation in operations), -1.5)
    assert run.stacks() == [
        [(-1, 0), (0, 2)],
        [(-1, 0), (0, 1)],
        [(-1, 0), (0, 1), (2, 0)],
        [(-1, 0), (0, 1)],
        [(-1, 0)],
        [(-1, 2)],
    ]
    assert str(run) == "push 2 -> q1, replace 1 -> q0, push 0 -> q0, pop -> q1, pop -> q0, replace 2 -> q2"
    assert run.listing(["a", "bb", "c", "d", "e", "f"]).splitlines() == [
        " a    push 2 -> q1",
        "bb    replace 1 -> q0",
        " c      push 0 -> q0",
        " d      pop -> q1",
        " e    pop -> q0",
        " f  replace 2 -> q2",
    ]
    assert run.listing().splitlines()[2] == "2      push 0 -> q0"
    assert run.listing([1, 10, None, 3.5, "x", 7]).splitlines()[2] == "None      push 0 -> q0"
    with pytest.raises(ValueError, match="labels"):
        run.listing(["a"])


def test_bad_input():
    push, replace, pop = random_transitions(2, 4, 2, 3, generator=seeded())
    with pytest.raises(ValueError, match="log_push"):
        best_runs(push[0], replace, pop)
    with pytest.raises(ValueError, match="log_replace"):
        best_runs(push, replace[:, :3], pop)
    with pytest.raises(ValueError, match="log_pop"):
        best_runs(push, replace, pop[..., :1])
    with pytest.raises(ValueError, match="lengths"):
        best_runs(push, replace, pop, lengths=torch.tensor([4, 5]))
    with pytest.raises(ValueError, match="lengths"):
        best_runs(push, replace, pop, lengths=torch.tensor([4]))
    for number, error in ((-1, ValueError), (0, ValueError), (2.0, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match=f"num_samples: expected .*, got {number}"):
            sample_runs(push, replace, pop, number)
    with pytest.raises(TypeError, match=r"generator: expected a torch.Generator or None, got int"):
        sample_runs(push, replace, pop, 1, generator=7)
    with pytest.raises(TypeError, match="lengths"):
        sample_runs(push, replace, pop, 1, lengths=[4, 4])
    pop[1, 2, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"log_pop.*sequence 1"):
        best_runs(push, replace, pop)
