"""Table of operator times on a GPU, to send to the authors: `python -m benchmarks --device cuda`."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

import stackattn
from stackattn.ops.triton_backend import availability

LENGTHS = (25, 60, 100, 200, 400)
WINDOW = 64
COLUMNS = ("operator", "B", "T", "backend", "forward, ms", "with backward, ms", "peak, MB")


def environment(device: torch.device) -> list[str]:
    """Hardware and versions."""
    lines = [f"stackattn {stackattn.__version__}", f"PyTorch {torch.__version__}"]
    if device.type == "cuda":
        lines.append(f"GPU: {torch.cuda.get_device_name(device)}")
        lines.append(f"CUDA {torch.version.cuda}, ROCm {torch.version.hip}")
    lines.append(f"backend triton: {availability.status()}")
    return lines


def table(device: torch.device, lengths: tuple[int, ...] = LENGTHS, B: int = 10, seconds: float = 1.0) -> Iterator[str]:
    """Yield the lines of the table. If a measurement fails, its row contains the error instead of times."""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + " --- |" * len(COLUMNS)
    windowed = partial(stackattn.nondeterministic_weights, window=WINDOW)
    operators = {
        "nondeterministic": stackattn.nondeterministic_weights,
        f"nondeterministic, window {WINDOW}": windowed,
        "superposition": stackattn.superposition_weights,
    }
    for (name, operator), T in product(operators.items(), lengths):
        inputs = _inputs(name, B, T, device)
        for backend in ("torch", "torch, CUDA graph", "triton"):
            try:
                cells = _measured(operator, inputs, backend, device, seconds)
            except Exception as error:  # out of memory, or an error in the compiler or the driver
                cells = [f"{type(error).__name__}: {error}".splitlines()[0][:80], "", ""]
            yield "| " + " | ".join((name, str(B), str(T), backend, *cells)) + " |"


def _inputs(name: str, B: int, T: int, device: torch.device, Q: int = 3, S: int = 3) -> list[Tensor]:
    if name == "superposition":
        return [torch.randn(B, T, 3, device=device).softmax(-1).requires_grad_()]
    shapes = (B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q)
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]


def _measured(
    operator: Callable[..., Tensor], inputs: list[Tensor], backend: str, device: torch.device, seconds: float
) -> list[str]:
    graph = backend.endswith("graph")
    function = _Operator(operator, backend.split(",")[0])
    call = torch.cuda.make_graphed_callables(function, tuple(inputs)) if graph else function
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def forward() -> None:
        call(*inputs)

    def both() -> None:
        result = call(*inputs)
        torch.autograd.grad(result, inputs, torch.ones_like(result))

    times = [_best(step, device, seconds) for step in (forward, both)]
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else 0.0
    return [*(f"{1e3 * x:.3g}" for x in times), f"{peak:.4g}"]


class _Operator(torch.nn.Module):
    def __init__(self, operator: Callable[..., Tensor], backend: str):
        super().__init__()
        self.operator, self.backend = operator, backend

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.operator(*inputs, backend=self.backend)


def _best(step: Callable[[], None], device: torch.device, seconds: float) -> float:
    """Return the shortest time of a step, repeated for `seconds` after a warm-up step."""
    best, end = float("inf"), None
    while end is None or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken = time.perf_counter() - start
        best, end = (best, time.perf_counter() + seconds) if end is None else (min(best, taken), end)
    return best
