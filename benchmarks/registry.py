"""The cases: shapes, what is compared on them, and the tests that must pass before speeds are reported."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from . import long, models, sentences, steps, translation
from .steps import Shape, Step
from .targets import BY_WEIGHTS, RATE, TRANSFORMER_LAYER

OPERATOR_TESTS = ("tests/ops",)
LIMIT_TESTS = ("tests/ops/test_window.py", "tests/ops/test_window_states.py", "tests/ops/test_vectors.py")
MODEL_TESTS = ("tests/nn", "tests/models")
TRANSFORMERS = ("Tf", "Tf+Sup", "Tf+Nd")
LSTMS = ("LSTM", "LSTM+Sup", "LSTM+Nd")


@dataclass(frozen=True)
class Contender:
    """One of the implementations that a case compares."""

    build: Callable[[Shape], Step]
    longest: int = 10**9  # left out if T is larger
    once: bool = False  # too slow to repeat: measured once, with the largest number of threads
    multiply_adds: Callable[[Shape], float] | None = None  # of forward and backward, recomputation not counted


@dataclass(frozen=True)
class Case:
    """Implementations that are compared on the same shapes."""

    about: str
    fields: str  # the letters of the shape that the case depends on
    shapes: tuple[Shape, ...]
    contenders: dict[str, Contender]  # the others' times are given as multiples of the first one's
    tests: tuple[str, ...] = OPERATOR_TESTS  # what pytest runs first, except the slow tests


def _chart(shape: Shape) -> float:
    """Multiply-adds of the cubic term of the nondeterministic stack, forward and backward."""
    B, T, Q, S, _ = shape
    return 3 * (Q**3 * S + Q**2 * S) * T**3 / 6 * B


def _models(build: Callable[..., Step], names: Iterable[str]) -> dict[str, Contender]:
    return {name: Contender(partial(build, architecture=name)) for name in names}


def _model_case(
    about: str,
    shape: Shape,
    build: Callable[..., Step],
    names: Iterable[str] = TRANSFORMERS,
    tests: tuple[str, ...] = MODEL_TESTS,
) -> Case:
    """A case with one contender for each of the named models."""
    return Case(about, "BT", (shape,), _models(build, names), tests)


def _state_case(stack: str, fields: str, full_pass: Callable[..., Step], step_by_step: Callable[..., Step]) -> Case:
    """A case that compares a stack's operator with its state."""
    return Case(
        f"The {stack} stack in one call, and with a state that is extended one step at a time.",
        fields,
        (Shape(T=60),),
        {
            "full pass": Contender(partial(full_pass, backend="cpp")),
            "step by step": Contender(partial(step_by_step, backend="cpp")),
        },
    )


LIMITED = {
    "window 32": "nondeterministic-3-3-5w32",
    "window 64": "nondeterministic-3-3-5w64",
    "superposition, depth 64": "superposition-64d64",
}
EXACT = {"nondeterministic": "nondeterministic-3-3-5", "superposition": "superposition-64"}


def _layers(build: Callable[..., Step], notations: dict[str, str], longest: int = 10**9) -> dict[str, Contender]:
    return {name: Contender(partial(build, notation=text), longest) for name, text in notations.items()}


def _layer_case(about: str, shapes: tuple[Shape, ...], contenders: dict[str, Contender]) -> Case:
    """A case of single layers, with or without a limit (a window or a depth)."""
    return Case(about, "BT", shapes, contenders, LIMIT_TESTS)


LENGTHS = (40, 60, 80, 100, 200, 400, 800)

CASES = {
    "nondeterministic": Case(
        "Attention weights from actions, compared with softmax attention, a whole transformer and the float64 rate.",
        "BTQS",
        (Shape(T=25), *(Shape(T=T, Q=Q) for Q in (3, 2) for T in LENGTHS)),
        {
            "cpp": Contender(partial(steps.nondeterministic, backend="cpp"), multiply_adds=_chart),
            "torch": Contender(partial(steps.nondeterministic, backend="torch"), longest=200, multiply_adds=_chart),
            "reference": Contender(partial(steps.nondeterministic, backend="reference"), longest=60, once=True),
            "MultiheadAttention": Contender(steps.attention),
            "transformer training step": Contender(steps.transformer),
            RATE: Contender(steps.matrix_product, multiply_adds=lambda _: 2048.0**3),
        },
    ),
    "extended": Case(
        "Normally distributed log weights: of scale 1, and of scale 100, which is beyond the range of float64.",
        "BTQS",
        (Shape(T=60), Shape(T=100)),
        {
            "scale 1": Contender(partial(steps.nondeterministic, backend="cpp")),
            "scale 100": Contender(partial(steps.nondeterministic, backend="cpp", scale=100.0)),
        },
    ),
    "steps": _state_case("nondeterministic", "BTQS", steps.nondeterministic, steps.nondeterministic_steps),
    "readings": Case(
        "Readings of the nondeterministic stack: by nondeterministic_readings, and as weights times values.",
        "BTQSm",
        (Shape(T=60, m=5), Shape(T=200, m=5)),
        {
            "readings": Contender(partial(steps.readings, fused=True)),
            "weights times values": Contender(partial(steps.readings, fused=False)),
        },
    ),
    "attention": Case(
        "Causal softmax attention with four heads of m numbers, with dropout 0.1 and without.",
        "BTm",
        (Shape(T=61, m=8), Shape(T=25, m=32), Shape(T=200, m=64)),
        {
            f"{name}, dropout {rate}": Contender(partial(build, dropout=rate, **options))
            for rate in (0.1, 0.0)
            for name, build, options in (
                ("cpp", steps.causal_softmax_attention, {"backend": "cpp"}),
                ("PyTorch", steps.pytorch_attention, {}),
            )
        },
    ),
    "dropout": Case(
        "Dropout of B T vectors of m numbers: alone, with a residual addition, and after a ReLU.",
        "BTm",
        (Shape(T=61, m=32), Shape(T=200, m=256)),
        {
            f"{kind}, {name}": Contender(partial(steps.dropout_step, kind=kind, fused=fused))
            for kind in ("alone", "residual", "relu")
            for name, fused in (("cpp", True), ("PyTorch", False))
        },
    ),
    "linear": Case(
        "Linear maps of B T vectors of m numbers: to 512 numbers, and to a vocabulary of 6154.",
        "BTm",
        (Shape(B=36, T=28, m=128), Shape(B=13, T=24, m=256)),
        {
            f"{outputs} outputs, {name}": Contender(partial(steps.linear_step, outputs=outputs, fast=fast))
            for outputs in (512, 6154)
            for name, fast in (("stackattn", True), ("PyTorch", False))
        },
    ),
    "superposition": Case(
        "Readings of the superposition stack, compared with the recurrence on vectors in plain PyTorch.",
        "BTm",
        (Shape(T=60),),
        {
            "cpp": Contender(partial(steps.superposition, backend="cpp")),
            "torch": Contender(partial(steps.superposition, backend="torch")),
            "vectors": Contender(steps.superposition_vectors),
        },
    ),
    "superposition-steps": _state_case("superposition", "BT", steps.superposition_full, steps.superposition_steps),
    "superposition-training": Case(
        "A training step of one layer of superposition stack attention on long sequences.",
        "BTm",
        (Shape(T=1000, m=64),),
        {"cpp": Contender(partial(steps.superposition_training, backend="cpp"))},
    ),
    "long": _layer_case(
        "A layer on long sequences, compared with nn.TransformerEncoderLayer(64, 4, 256).",
        (Shape(T=1000), Shape(T=2000), Shape(T=4000)),
        {
            TRANSFORMER_LAYER: Contender(long.transformer_layer),
            **_layers(long.stack_layer, LIMITED | {"superposition": EXACT["superposition"]}),
        },
    ),
    "exact-layers": _layer_case(
        "Exact layers on short sequences: as models run them, and with attention weights multiplied by the values.",
        (Shape(T=60), Shape(T=200)),
        {
            **_layers(long.stack_layer, EXACT),
            **_layers(long.by_weights, {f"{name}{BY_WEIGHTS}": text for name, text in EXACT.items()}),
        },
    ),
    "long-forward": _layer_case(
        "The forward pass of a layer on one very long sequence.",
        (Shape(B=1, T=100_000),),
        _layers(long.forward_pass, LIMITED),
    ),
    "long-decoding": _layer_case(
        "One more step of a layer after T steps.",
        (Shape(T=200), Shape(T=10_000)),
        {
            **_layers(long.decoding, LIMITED),
            **_layers(long.decoding, {"no window": EXACT["nondeterministic"]}, longest=200),
        },
    ),
    "models": Case(
        "A training step of the paper's models for the hardest context-free language, on strings of T symbols.",
        "BT",
        (Shape(T=60),),
        {
            **_models(models.training, TRANSFORMERS),
            "Tf, no dropout": Contender(partial(models.training, architecture="Tf", dropout=0.0)),
            "Tf+Nd, no dropout": Contender(partial(models.training, architecture="Tf+Nd", dropout=0.0)),
            "nn.TransformerEncoder": Contender(models.transformer_encoder),
            "loop over nn.LSTMCell": Contender(models.loop_over_cells),
            **_models(models.training, LSTMS),
        },
        tests=MODEL_TESTS,
    ),
    "decoding": _model_case(
        "The next token after T tokens, from the models' states.",
        Shape(T=100),
        models.decoding,
        TRANSFORMERS + LSTMS,
    ),
    "translation": _model_case(
        "A training step of the paper's smallest translation models (d_model 160), on B pairs of T tokens each.",
        Shape(B=64, T=30),
        translation.training,
    ),
    "translating": _model_case(
        "Translating B sentences of T tokens into T tokens, with beam size 4 and the models of the case `translation`.",
        Shape(B=32, T=30),
        translation.translating,
    ),
    "ptb": _model_case(
        "A training step of the paper's models for the Penn Treebank, on B sentences of T tokens.",
        Shape(B=12, T=24),
        sentences.training,
        tests=(*MODEL_TESTS, "tests/training/test_training_lm.py"),
    ),
    "runs": Case(
        "The best run of each sequence, and ten sampled runs of each.",
        "BTQS",
        (Shape(B=1, T=100), Shape(T=100)),
        {
            "best_runs": Contender(partial(steps.runs, name="best_runs")),
            "sample_runs": Contender(partial(steps.runs, name="sample_runs", num_samples=10)),
        },
        tests=("tests/ops/test_runs.py",),
    ),
}
