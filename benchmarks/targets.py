"""The targets of the benchmarks, and whether the results meet them."""

from collections.abc import Callable
from dataclasses import dataclass

Row = dict
PTB = {"B": 12, "T": 24}
ENCODER, CELLS = "nn.TransformerEncoder", "loop over nn.LSTMCell"
TRAINING_STEPS = (  # model, PyTorch's counterpart, threads, largest ratio of their times
    ("Tf", ENCODER, 1, 0.4),
    ("Tf", ENCODER, 2, 0.4),
    ("Tf+Sup", ENCODER, 1, 0.45),
    ("Tf+Sup", ENCODER, 2, 0.45),
    ("Tf+Nd", ENCODER, 1, 0.95),
    ("Tf+Nd", ENCODER, 2, 0.8),
    ("LSTM+Sup", CELLS, 1, 0.5),
    ("LSTM+Nd", CELLS, 1, 3.5),
    ("LSTM+Nd", CELLS, 2, 3.0),
)
TRANSFORMER_LAYER = "nn.TransformerEncoderLayer"
LONG = (  # contender, steps, largest ratio of its time to that of the transformer layer
    ("superposition", 1000, 1.1),
    ("superposition", 4000, 2.4),
    ("superposition, depth 64", 1000, 0.18),
    ("superposition, depth 64", 4000, 0.07),
    ("window 32", 1000, 2.0),
    ("window 32", 4000, 0.8),
    ("window 64", 1000, 5.5),
    ("window 64", 4000, 2.1),
)
LIMITED = ("window 64", "superposition, depth 64")
BY_WEIGHTS = ", weights times values"
RATE = "2048^3 float64 mm"  # the contender that shows the machine's rate


@dataclass(frozen=True)
class Results:
    """The rows of all measurements."""

    rows: list[Row]

    def find(self, case: str, contender: str, threads: int = 2, **shape: int) -> Row:
        """The row of a measurement; KeyError if there is none. By default, B is 10, T is 60, and Q and S are 3."""
        wanted = {"B": 10, "T": 60, "Q": 3, "S": 3} | shape
        for row in self.rows:
            if (row["case"], row["contender"], row["threads"]) == (case, contender, threads) and wanted.items() <= row[
                "shape"
            ].items():
                return row
        raise KeyError(case, contender, threads, shape)

    def same(self, row: Row, contender: str | None = None, T: int | None = None) -> Row:
        """The row of another contender, or of another length, measured beside this one."""
        shape = row["shape"] if T is None else row["shape"] | {"T": T}
        return self.find(row["case"], contender or row["contender"], row["threads"], **shape)

    def share(self, row: Row) -> float:
        """Useful multiply-adds per second, relative to those of the matrix product with the same number of threads."""
        machine = self.same(row, RATE)
        return row["multiply_adds"] / row["total"] / (machine["multiply_adds"] / machine["total"])

    def growth(self, row: Row, what: str = "total") -> float:
        """Ratio of the figure `what` to its value at half the length."""
        T = row["shape"]["T"]
        if T % 2 or row["contender"] == RATE:
            raise KeyError("growth")
        return row[what] / self.same(row, T=T // 2)[what]


@dataclass(frozen=True)
class Target:
    """A limit on a figure of the results: an upper limit, or a lower one with `at_least`."""

    text: str
    figure: Callable[[Results], float]
    limit: float
    unit: str = ""
    at_least: bool = False

    def line(self, results: Results) -> tuple[str, str, str, str]:
        """The target, its limit, the measured figure, and whether it is met."""
        limit = f"at {'least' if self.at_least else 'most'} {self.limit:g}{self.unit}"
        try:
            figure = self.figure(results)
        except KeyError:
            return self.text, limit, "", "not measured"
        met = figure >= self.limit if self.at_least else figure <= self.limit
        return self.text, limit, f"{figure:.3g}{self.unit}", "met" if met else "NOT MET"


def _time(case: str, contender: str, **shape: int) -> Callable[[Results], float]:
    return lambda results: 1e3 * results.find(case, contender, **shape)["total"]


def _ratio(case: str, contender: str, other: str, **shape: int) -> Callable[[Results], float]:
    return lambda results: results.find(case, contender, **shape)["total"] / results.find(case, other, **shape)["total"]


def _speed(case: str, contender: str, **shape: int) -> Callable[[Results], float]:
    """Examples per second."""
    return lambda results: shape["B"] / results.find(case, contender, **shape)["total"]


def _share(T: int) -> Callable[[Results], float]:
    return lambda results: 100 * results.share(results.find("nondeterministic", "cpp", T=T))


def _growth(T: int, what: str, case: str = "nondeterministic", contender: str = "cpp") -> Callable[[Results], float]:
    return lambda results: results.growth(results.find(case, contender, T=T), what)


def _peak(case: str, what: str, contender: str = "cpp", **shape: int) -> Callable[[Results], float]:
    return lambda results: results.find(case, contender, **shape)[what] / 1e9


def _later_step(contender: str) -> Callable[[Results], float]:
    def ratio(results: Results) -> float:
        early, late = (results.find("long-decoding", contender, T=T) for T in (200, 10_000))
        return late["total"] / early["total"]

    return ratio


TARGETS = (
    Target(
        "cpp, T=60, over a transformer's training step",
        _ratio("nondeterministic", "cpp", "transformer training step"),
        0.4,
    ),
    Target("cpp, T=60", _time("nondeterministic", "cpp"), 10, " ms"),
    Target("torch backend, T=60", _time("nondeterministic", "torch"), 70, " ms"),
    *(Target(f"cpp, T={T}, share of the float64 rate", _share(T), 25, " %", at_least=True) for T in (200, 400, 800)),
    *(Target(f"cpp, time(T={T}) / time(T={T // 2})", _growth(T, "total"), 8.5) for T in (400, 800)),
    *(Target(f"cpp, memory(T={T}) / memory(T={T // 2}): as T^2", _growth(T, "peak"), 4.2) for T in (400, 800)),
    Target("cpp, T=400, memory above inputs and outputs", _peak("nondeterministic", "peak", T=400), 1.2, " GB"),
    Target(
        "superposition, T=60, m=32, times faster than the recurrence on vectors",
        _ratio("superposition", "vectors", "cpp"),
        10,
        at_least=True,
    ),
    Target(
        "superposition, T=1000, m=64, training step, memory of the whole process",
        _peak("superposition-training", "process_peak", T=1000, m=64),
        2,
        " GB",
    ),
    Target("step by step, T=60, over the full pass", _ratio("steps", "step by step", "full pass"), 5),
    *(
        Target(f"{name}, T={T}, over {TRANSFORMER_LAYER}", _ratio("long", name, TRANSFORMER_LAYER, T=T), limit)
        for name, T, limit in LONG
    ),
    *(
        Target(f"{name}, {what}(T=4000) / {what}(T=2000)", _growth(4000, key, "long", name), 2.2)
        for name in LIMITED
        for what, key in (("time", "total"), ("memory", "peak"))
    ),
    *(
        Target(f"{name} layer, T={T}, over{BY_WEIGHTS[1:]}", _ratio("exact-layers", name, name + BY_WEIGHTS, T=T), 1)
        for name in ("nondeterministic", "superposition")
        for T in (60, 200)
    ),
    Target("window 64, T=4000, memory above inputs", _peak("long", "peak", "window 64", T=4000), 0.5, " GB"),
    Target("window 64, B=1, T=100000, forward", _time("long-forward", "window 64", B=1, T=100_000), 1e4, " ms"),
    Target(
        "window 64, B=1, T=100000, forward, memory",
        _peak("long-forward", "peak", "window 64", B=1, T=100_000),
        1,
        " GB",
    ),
    *(
        Target(f"{name}, one more step after 10000 steps, over that after 200", _later_step(name), 1.2)
        for name in LIMITED
    ),
    *(
        Target(
            f"training step, {name} over {other}, threads: {threads}",
            _ratio("models", name, other, threads=threads),
            limit,
        )
        for name, other, threads, limit in TRAINING_STEPS
    ),
    Target(
        "Penn Treebank, examples per second, Tf+Nd over Tf", _ratio("ptb", "Tf", "Tf+Nd", **PTB), 0.8, at_least=True
    ),
    Target("Penn Treebank, Tf+Nd, examples per second (paper: 27)", _speed("ptb", "Tf+Nd", **PTB), 27, at_least=True),
    Target("decoding after 100 tokens, Tf+Nd over Tf", _ratio("decoding", "Tf+Nd", "Tf", T=100), 2),
    Target("decoding after 100 tokens, Tf+Sup over Tf", _ratio("decoding", "Tf+Sup", "Tf", T=100), 2),
    Target("translation, training step, Tf+Nd over Tf", _ratio("translation", "Tf+Nd", "Tf", B=64, T=30), 2),
    Target("translating with beam 4, Tf+Nd over Tf", _ratio("translating", "Tf+Nd", "Tf", B=32, T=30), 3),
    Target("best run of a sequence, T=100: well under a second", _time("runs", "best_runs", B=1, T=100), 500, " ms"),
    Target("sampled runs of a sequence, T=100", _time("runs", "sample_runs", B=1, T=100), 500, " ms"),
)
