"""Files of a run: damaged files are reported with file, line and key, and resuming removes incomplete lines."""

import json
import re
import shutil

import pytest
import torch
from runs import LANGUAGE, Killed, Stopper, outcome, stop, tiny

from stackattn.files import check_crc, with_crc
from stackattn.lines import read_json_object
from stackattn.training import RunError, TrainingRun, loop, run_experiment, sweep
from stackattn.training.run_files import read_metrics


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after its second evaluation."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(Killed):
        run_experiment(tiny(), folder, callback=Stopper(2, stop))
    return folder


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "complete"
    run_experiment(tiny(), folder)
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    """A copy of the stopped run."""
    return shutil.copytree(stopped, tmp_path / "run")


def change(path, key, value):
    """Set a dotted key of a JSON file, or delete it if `value` is `...`; the file has no CRC afterwards."""
    values = read_json_object(path)
    *parents, last = key.split(".")
    inner = values
    for parent in parents:
        inner = inner[parent]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(values))


STATES = [
    ("plateau", ..., "missing key 'plateau'"),
    ("plateau", 3, "plateau: expected an object, got 3"),
    ("plateau.best", "x", "plateau.best: expected a number, got 'x'"),
    ("plateau.bad", 1.5, "plateau.bad: expected an integer of at least 0, got 1.5"),
    ("stopping.bad", ..., "missing key 'stopping.bad'"),
    ("stopping.best", None, "stopping.best: expected a number, got None"),
    ("progress.epoch", -1, "progress.epoch: expected an integer of at least 0, got -1"),
    ("progress.examples", ..., "missing key 'progress.examples'"),
    ("progress.best", [1], "progress.best: expected an object or null, got [1]"),
    ("progress.best.score", ..., "missing key 'progress.best.score'"),
    ("progress.seconds", True, "progress.seconds: expected a number, got True"),
    ("progress.surprise", 1, "unknown key 'progress.surprise'"),
    ("learning_rate", "fast", "learning_rate: expected a number, got 'fast'"),
    ("metrics", -1, "metrics: expected an integer of at least 0, got -1"),
    ("tensors", "../../../etc/passwd", "tensors: expected the name of a safetensors file, got '../../../etc/passwd'"),
    ("tensors", "/etc/x.safetensors", "tensors: expected the name of a safetensors file"),
    ("tensors", "..safetensors", "tensors: expected the name of a safetensors file"),
    ("tensors", 3, "tensors: expected the name of a safetensors file, got 3"),
]


@pytest.mark.parametrize(("key", "value", "message"), STATES)
def test_invalid_state(key, value, message, folder):
    path = folder / "last/state.json"
    change(path, key, value)
    with pytest.raises(RunError, match=re.escape(f"{path}: {message}")) as error:
        run_experiment(tiny(), folder, resume=True)
    assert str(error.value).endswith(
        f"; the run cannot be resumed: restore the file from a copy, or remove {folder} to start again"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\n", ", line 1: not UTF-8: byte 0xff"),
        (b'{"a": 1,\n', ", line 2: not JSON"),
        (b"[1]", ": expected a JSON object, got list"),
        (b"[" * 100_000, ": cannot read this JSON"),
        (b'{"a": ' + b"1" * 10_000 + b"}", ": "),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "last/state.json", "result.json", "test.json"])
def test_files_that_are_not_json_objects(name, content, message, folder):
    path = folder / name
    path.write_bytes(content)
    run = TrainingRun(folder)
    readers = {
        "config.json": run.config,
        "last/state.json": run.state,
        "result.json": run.result,
        "test.json": run.test,
    }
    with pytest.raises(RunError, match=re.escape(f"{path}{message}")):
        readers[name]()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON"),
        ('{"a":', "not JSON"),
        ("3", "expected an object, got int"),
        ("{}", "missing key 'evaluation'"),
        ('{"evaluation": "2"}', "evaluation: expected an integer of at least 0, got '2'"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_invalid_metrics(line, message, folder):
    path = folder / "metrics.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n{line}\n")
    with pytest.raises(RunError, match=re.escape(f"{path}, line 2: {message}")):
        TrainingRun(folder).metrics()


def test_metrics_with_a_non_number(folder):
    path = folder / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    changed = with_crc({**check_crc(json.loads(second), ""), "cross_entropy_difference": "low"})
    path.write_text(f"{first}\n{json.dumps(changed)}\n")
    with pytest.raises(RunError, match=r"line 2: cross_entropy_difference: expected a number or null, got 'low'"):
        read_metrics(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("stopped", ..., "missing key 'stopped'"),
        ("best", 3, "best: expected an object or null, got 3"),
        ("best.score", "x", "best.score: expected a number, got 'x'"),
    ],
)
def test_invalid_results(key, value, message, complete, tmp_path):
    folder = shutil.copytree(complete, tmp_path / "run")
    change(folder / "result.json", key, value)
    with pytest.raises(RunError, match=re.escape(f"{folder / 'result.json'}: {message}")):
        TrainingRun(folder).result()


ROW = {"length": 4, "cross_entropy": 1.0, "lower_bound": 0.5, "difference": 0.5, "difference_from_floor": None}


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({}, "missing key 'lengths'"),
        ({"perplexity": "low"}, "perplexity: expected a number, got 'low'"),
        ({"lengths": 3}, "lengths: expected a list of objects, got 3"),
        ({"lengths": [ROW]}, "missing key 'per_length'"),
        (
            {"per_length": 1, "lengths": [ROW, {**ROW, "difference": "x"}]},
            "lengths.1.difference: expected a number, got 'x'",
        ),
        ({"per_length": 1, "lengths": [{"length": 3}]}, "missing key 'lengths.0.cross_entropy'"),
    ],
)
def test_invalid_test_results(test, message, folder):
    path = folder / "test.json"
    path.write_text(json.dumps(test))
    with pytest.raises(RunError, match=re.escape(f"{path}: {message}")):
        TrainingRun(folder).test()


@pytest.mark.parametrize("end", ["", '{"evaluation": 3, "sc', '{"evaluation": 3'])
def test_an_incomplete_last_line_is_ignored_and_removed_on_resume(end, folder, complete):
    path = folder / "metrics.jsonl"
    with open(path, "a") as file:
        file.write(end)
    assert len(TrainingRun(folder).metrics()) == 2
    run_experiment(tiny(), folder, resume=True)
    assert [row["evaluation"] for row in TrainingRun(folder).metrics()] == [1, 2, 3]
    assert outcome(folder) == outcome(complete)


def test_a_truncated_line_that_the_checkpoint_counts_is_refused(folder):
    path = folder / "metrics.jsonl"
    cut = path.read_text()[:-10]
    path.write_text(cut)
    with pytest.raises(RunError, match=r"state\.json: expected 2 or more complete lines in metrics\.jsonl, found 1"):
        run_experiment(tiny(), folder, resume=True)
    assert path.read_text() == cut


def test_a_changed_tensor_file_is_refused(folder):
    (path,) = (folder / "last").glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        RunError, match=r"its content does not match the checksum in state\.json; the run cannot be resumed"
    ):
        run_experiment(tiny(), folder, resume=True)


def test_checkpoints_without_a_checksum(folder, complete):
    """Earlier versions wrote no checksum."""
    change(folder / "last/state.json", "checksum", ...)
    run_experiment(tiny(), folder, resume=True)
    assert outcome(folder) == outcome(complete)


@pytest.mark.parametrize("name", ["config.json", "last/state.json", "metrics.jsonl"])
def test_a_folder_in_place_of_a_file(name, folder):
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(RunError, match=re.escape(f"{folder / name}: cannot read: Is a directory")):
        run_experiment(tiny(), folder, resume=True)
    assert sweep.best_of([folder]) is None or name == "config.json"


def test_a_missing_tensor_file(folder):
    (path,) = (folder / "last").glob("*.safetensors")
    path.unlink()
    with pytest.raises(
        RunError,
        match=f"{path}: .*; the run cannot be resumed: restore the file from a copy, or remove {folder} to start again",
    ):
        run_experiment(tiny(), folder, resume=True)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_deleted_during_training_is_not_created_again(replaced, tmp_path):
    folder = tmp_path / "run"

    def delete():
        shutil.rmtree(folder)
        if replaced:
            folder.mkdir()

    with pytest.raises(RunError, match="run: the folder was deleted or replaced during training; restore it"):
        run_experiment(tiny(), folder, callback=Stopper(1, delete))
    assert folder.exists() == replaced
    assert not replaced or list(folder.iterdir()) == []


def test_a_folder_deleted_before_a_checkpoint(tmp_path, monkeypatch):
    class Delete:
        def on_batch(self, epoch, done, total, loss):
            if done == 2:
                shutil.rmtree(tmp_path / "run")

        def on_evaluation(self, values, best):
            pass

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    with pytest.raises(RunError, match="the folder was deleted or replaced during training"):
        run_experiment(tiny(), tmp_path / "run", callback=Delete())
    assert not (tmp_path / "run").exists()


def test_a_damaged_run_does_not_stop_a_sweep(complete, tmp_path):
    """Runs with a broken config.json, finished or not, are reported; the others are trained."""
    jobs = [(tmp_path / f"{i:02}", tiny(language={"seed": i}, max_epochs=1)) for i in range(3)]
    for name in ("00", "01"):
        shutil.copytree(complete, tmp_path / name)
        (tmp_path / name / "config.json").write_text("{")
    (tmp_path / "01/result.json").unlink()
    reports = {}
    failed = sweep.run_all(jobs, processes=1, report=lambda folder, result: reports.update({folder.name: result}))
    assert sorted(folder.name for folder in failed) == ["00", "01"]
    for name in ("00", "01"):
        assert f"{tmp_path / name / 'config.json'}, line 1: not JSON" in reports[name]["stopped"]
    assert reports["02"]["stopped"] == "max_epochs"
    (tmp_path / "00/metrics.jsonl").write_text("x\n")
    best, _ = sweep.best_of([folder for folder, _ in jobs])
    assert best in (tmp_path / "01", tmp_path / "02")


def test_a_stored_configuration_with_an_unknown_key(folder):
    change(folder / "config.json", "training.clop", 1)
    with pytest.raises(ValueError, match=r"config.json: unknown key 'training.clop'; did you mean 'training.clip'\?"):
        run_experiment(tiny(), folder, resume=True)
    assert LANGUAGE["name"] == TrainingRun(folder).config()["language"]["name"]


def test_best_model_environment_and_test_results(complete, tmp_path):
    run = TrainingRun(shutil.copytree(complete, tmp_path / "run"))
    assert {"model.safetensors", "config.json"} <= {path.name for path in run.best_model.iterdir()}
    assert run.environment()["torch"] == torch.__version__
    row = {"length": 4, "cross_entropy": 1.0, "lower_bound": 0.5, "difference": 0.5, "difference_from_floor": None}
    results = {"model": run.model_checksum(), "per_length": 1, "lengths": [row]}
    assert run.write_test(results).parent == run.folder
    assert run.test() == results


def test_changed_metrics_are_refused(folder):
    path = folder / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second.replace('score', 'socre')}\n")
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2: damaged: the content does not match its key 'crc32'"):
        TrainingRun(folder).metrics()
    path.write_text(f"{second}\n")
    with pytest.raises(RunError, match=r"metrics.jsonl, line 1: expected evaluation 1, got 2; a line is missing"):
        TrainingRun(folder).metrics()
    path.write_text(f"{first}\n")
    with pytest.raises(RunError, match=r"metrics.jsonl: expected 2 or more evaluations, as stated in last/state.json"):
        TrainingRun(folder).metrics()


@pytest.mark.parametrize("name", ["config.json", "last/state.json"])
def test_changed_numbers_are_refused(name, folder):
    path = folder / name
    path.write_text(re.sub(r'("seed"|"loss_sum"): [\d.]+', r"\1: 7", path.read_text()))
    with pytest.raises((RunError, ValueError), match=rf"{name}: damaged: the content does not match its key 'crc32'"):
        run_experiment(tiny(), folder, resume=True)
