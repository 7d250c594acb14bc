"""Sweeps: reproducible restarts, the paper's distribution of learning rates, and resuming unfinished runs."""

import json
import math
import signal
import time
from dataclasses import replace

import pytest
from fork_server import processes
from runs import outcome, tiny

from stackattn.lines import read_json_object
from stackattn.training import TrainingRun, run_experiment, sweep
from stackattn.training.sweep import best_of, restart, run_all


@pytest.fixture
def _quick_processes(monkeypatch):
    monkeypatch.setattr(sweep, "get_context", lambda _: processes())


def test_restarts_are_reproducible_and_differ():
    configs = [restart(tiny(), number) for number in range(50)]
    assert configs == [restart(tiny(), number) for number in range(50)]
    for name in ("learning_rate", "init_seed", "shuffle_seed"):
        assert len({getattr(config.training, name) for config in configs}) == 50
    assert len({config.language.seed for config in configs}) == 50
    assert restart(tiny(), 0, seed=1) != configs[0]
    assert restart(tiny(), 0, cell="dyck/tf") not in (configs[0], restart(tiny(), 0, cell="dyck/lstm"))
    plain = replace(tiny().training, learning_rate=1, init_seed=0, shuffle_seed=0)
    assert replace(configs[0].training, learning_rate=1, init_seed=0, shuffle_seed=0) == plain
    assert configs[0].model == tiny().model


def test_learning_rates_are_log_uniform_in_the_papers_range():
    rates = [restart(tiny(), number).training.learning_rate for number in range(2000)]
    places = sorted(math.log(rate / 5e-4) / math.log(1e-2 / 5e-4) for rate in rates)
    assert places[0] > 0
    assert places[-1] < 1
    # Kolmogorov-Smirnov test: for uniform samples, the distance exceeds 1.63 / sqrt(n) in 1 of 100 cases
    assert max(abs(x - (i + 0.5) / 2000) for i, x in enumerate(places)) < 1.63 / math.sqrt(2000)


def jobs(folder, count, **training):
    return [(folder / f"{i:02d}", restart(tiny(**training), i)) for i in range(count)]


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_processes")
def test_a_sweep_resumes_unfinished_runs_and_skips_finished_ones(tmp_path):
    chosen = jobs(tmp_path / "a", 3, max_epochs=4)
    reported = []

    class Interrupt:
        def on_batch(self, *_):
            pass

        def on_evaluation(self, values, best):
            if values["evaluation"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(chosen, processes=1, callback_for=lambda folder: Interrupt())
    assert not (tmp_path / "a/01").exists()
    left = len(TrainingRun(tmp_path / "a/00").metrics())
    assert left >= 2

    def note(folder, result):
        reported.append((folder.name, result["stopped"]))

    assert run_all(chosen, processes=2, report=note) == []
    assert sorted(reported) == [(name, "max_epochs") for name in ("00", "01", "02")]
    again = jobs(tmp_path / "b", 3, max_epochs=4)
    assert run_all(again, processes=1) == []
    for (a, _), (b, _) in zip(chosen, again, strict=True):
        assert outcome(a) == outcome(b)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    run_all(chosen, report=lambda *_: pytest.fail("a finished run was repeated"))
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    folder, best = best_of([folder for folder, _ in chosen])
    assert best == TrainingRun(folder).result()["best"]
    values = [TrainingRun(folder).result()["best"]["cross_entropy_difference"] for folder, _ in chosen]
    assert best["cross_entropy_difference"] == min(values) < max(values)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_processes")
def test_failed_runs_are_reported_and_the_others_are_trained(tmp_path):
    (first, a), (second, b), (third, c) = jobs(tmp_path, 3, max_epochs=1)
    a = replace(a, language=replace(a.language, name="dick"))
    reported = {}
    failed = run_all([(first, a), (second, b)], report=lambda folder, result: reported.update({folder: result}))
    assert failed == [first]
    assert reported[first]["stopped"].startswith("failed: language.name: ")
    assert reported[second]["stopped"] == "max_epochs"
    # a finished run with another configuration is an error
    assert run_all([(second, c)], report=lambda folder, result: reported.update({folder: result})) == [second]
    assert "another configuration (language.seed" in reported[second]["stopped"]
    # without time, no run starts
    assert run_all([(third, c)], minutes=0) == []
    assert not third.exists()
    assert run_all([(third, c)], minutes_each=0, report=lambda folder, result: reported.update({folder: result})) == []
    assert reported[third] == {"stopped": "budget"}


def sweep_in_process(folder):
    sweep.get_context = lambda _: processes()
    run_all(jobs(folder, 2, max_epochs=10000, stop_patience=10000), processes=2)


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_processes(tmp_path):
    process = processes().Process(target=sweep_in_process, args=(tmp_path,))
    process.start()
    while not all(TrainingRun(tmp_path / name).metrics() for name in ("00", "01")):
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for _ in range(500):
        before = [len(TrainingRun(tmp_path / name).metrics()) for name in ("00", "01")]
        time.sleep(0.1)
        if before == [len(TrainingRun(tmp_path / name).metrics()) for name in ("00", "01")]:
            break
    else:
        pytest.fail("the runs did not stop")
    time.sleep(0.3)
    assert before == [len(TrainingRun(tmp_path / name).metrics()) for name in ("00", "01")]


def test_keys_missing_in_an_old_run_have_their_defaults(tmp_path):
    run_experiment(tiny(max_epochs=1), tmp_path)
    path = tmp_path / "config.json"
    values = read_json_object(path)
    del values["training"]["clip"]
    path.write_text(json.dumps(values))
    assert TrainingRun(tmp_path).differs(tiny(max_epochs=1)) is None
    assert TrainingRun(tmp_path).differs(tiny(max_epochs=1, clip=1)) == "training.clip: 5.0 in the run, 1.0 requested"
