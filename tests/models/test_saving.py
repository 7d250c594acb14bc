"""Saved models: round trips, interrupted saves, and errors for invalid files."""

import errno
import json
import os
import re
import subprocess
import sys
from itertools import combinations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from subjects import MODELS, TOKENS, D, lm, make
from torch import nn

import stackattn
from stackattn import files
from stackattn.files import check_crc
from stackattn.models import load, save


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name, tmp_path):
    subject = make(name).with_source(3)
    x = subject.inputs(3, 6)
    expected = subject.full(x)
    folder = save(subject.module, tmp_path / "deeper" / "model")
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    before = torch.get_rng_state()
    loaded = stackattn.load(str(folder))
    assert torch.equal(torch.get_rng_state(), before)
    assert type(loaded) is type(subject.module)
    assert loaded.config == subject.module.config
    assert not loaded.training
    assert all(x.requires_grad for x in loaded.parameters())
    found = type(subject)(loaded, False, subject.source).full(x)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(dtype, tmp_path):
    loaded = load(save(lm("1").to(dtype), tmp_path))
    assert {x.dtype for x in loaded.state_dict().values()} == {dtype}


def test_a_tied_table_is_saved_once_and_stays_tied(tmp_path):
    loaded = load(save(lm("1", tied=True), tmp_path))
    assert sum("table" in name or "output.w" in name for name in load_file(tmp_path / "model.safetensors")) == 2
    tokens = torch.tensor([[0]])
    loaded(tokens)[0, 0, 3].backward()  # the gradient of a token that was not read comes from the output layer
    assert loaded.embedding.table.weight.grad[3].abs().sum() > 0


def test_compiled_models_are_saved_uncompiled(tmp_path):
    model = lm("1.superposition-3").eval()
    save(torch.compile(model, backend="eager"), tmp_path)
    tokens = torch.randint(TOKENS, (2, 4))
    torch.testing.assert_close(load(tmp_path)(tokens), model(tokens), atol=0, rtol=0)


def test_file_contents(tmp_path):
    save(lm("1.superposition-3x2", push_activation="published"), tmp_path)
    head = json.loads((tmp_path / "config.json").read_text())
    assert head["kind"] == "TransformerLM"
    assert head["format_version"] == 3
    assert head["library_version"] == stackattn.__version__
    assert head["config"]["layers"] == "1.superposition-3x2"
    assert head["config"]["push_activation"] == "published"
    assert any(name.startswith("trunk.layers.1.") for name in load_file(tmp_path / "model.safetensors"))


def test_other_files_in_the_folder_are_kept(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    save(lm("1"), tmp_path)
    save(lm("2"), tmp_path)
    assert load(tmp_path).config.layers == "2"
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors", "notes.txt"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("layers", ["1", "2"])
@pytest.mark.parametrize("at", range(11))
@pytest.mark.parametrize("old", [True, False])
def test_an_interrupted_save_leaves_the_old_model_the_new_one_or_none(at, old, layers, tmp_path, monkeypatch):
    """An interruption at any disk operation leaves the old model, the new model, or no config.json.

    config.json is missing only if there was none before, or if it changes and both temporary files are complete.
    """
    first, second = lm("1"), lm(layers)
    if old:
        save(first, tmp_path)
    calls = 0

    def count(function):
        def counted(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == at + 1:
                raise Killed
            return function(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", count(os.replace))
        patch.setattr(files.os, "fsync", count(os.fsync))
        patch.setattr("safetensors.torch.save_file", count(save_file))
        patch.setattr(files.Path, "write_bytes", count(files.Path.write_bytes))
        try:
            save(second, tmp_path)
        except Killed:
            finished = False
        else:
            finished = True
    config_changes = old and layers == "2"
    assert finished == (at >= (9 if config_changes else 8))
    if not (tmp_path / "config.json").exists():
        assert not finished
        assert not old or (config_changes and at >= 4)
        with pytest.raises(FileNotFoundError, match=r"(config\.json|model\.safetensors): not found"):
            load(tmp_path)
    else:
        found = load(tmp_path)
        assert any(
            found.config == model.config
            and all(torch.equal(x, y) for x, y in zip(found.parameters(), model.parameters(), strict=True))
            for model in ([second] if finished else [first] if at < 4 else [first, second])
        )
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_full_disk_leaves_the_old_model(name, tmp_path, monkeypatch):
    old = save(lm("1"), tmp_path)
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    flush = files._flush

    def full(path):
        if name in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(path)

    monkeypatch.setattr(files, "_flush", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        save(lm("2"), tmp_path)
    assert error.value.filename == str(tmp_path / name)
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_other_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model: expected one of TransformerLM, .*, got Linear"):
        save(nn.Linear(2, 2), tmp_path)
    model = lm("1")
    model.trunk.double()
    with pytest.raises(ValueError, match=r"model: expected one dtype, got torch.float32, torch.float64"):
        save(model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path):
    return save(lm("1.superposition-3"), tmp_path / "model")


def test_missing_files(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "nothing"))):
        load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"config\.json: expected a folder with config.json and .*, got a file"):
        load(folder / "config.json")
    (folder / "model.safetensors").rename(folder / "other")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors: not found"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json: not found"):
        load(folder)


def edited(change):
    def edit(text):
        head = check_crc(json.loads(text), "config.json")
        change(head)
        return json.dumps(head)

    return edit


WRONG_CONFIGS = {
    "empty": (lambda text: "", "not JSON"),
    "truncated": (lambda text: text[:50], "not JSON"),
    "binary": (lambda text: "\x00\x01", "not JSON"),
    "a list": (lambda text: "[1, 2]", "expected a JSON object, got list"),
    "of another library": (
        lambda text: '{"model_type": "gpt2"}',
        "unknown key 'model_type'; expected one of format_version, kind",
    ),
    "no kind": (edited(lambda head: head.pop("kind")), "expected the key kind, found none"),
    "newer format": (
        edited(lambda head: head.update(format_version=4, library_version="9.9")),
        r"expected a format from 1 to 3, got 4, written by stackattn 9\.9; this is stackattn",
    ),
    "unknown kind": (
        edited(lambda head: head.update(kind="TransformersLM")),
        "unknown kind 'TransformersLM'; did you mean 'TransformerLM'?",
    ),
    "kind is not a name": (edited(lambda head: head.update(kind=["LSTMLM"])), r"kind: expected str, got \['LSTMLM'\]"),
    "config is not an object": (edited(lambda head: head.update(config=3)), "config: expected .*, got 3"),
    "misspelt": (
        edited(lambda head: head["config"].update(d_modle=head["config"].pop("d_model"))),
        "config: unknown key 'd_modle'; did you mean 'd_model'?",
    ),
    "extra key": (
        edited(lambda head: head["config"].update(dropuot=0.1)),
        "config: unknown key 'dropuot'; did you mean 'dropout'?",
    ),
    "missing": (
        edited(lambda head: head["config"].pop("heads")),
        "config: missing key 'heads' of TransformerLM",
    ),
    "another model's": (edited(lambda head: head.update(kind="LSTMLM")), "config: unknown key 'layers'"),
    "text for a number": (
        edited(lambda head: head["config"].update(d_model="6")),
        "config: d_model: expected int, got '6'",
    ),
    "bool for a number": (
        edited(lambda head: head["config"].update(heads=True)),
        "config: heads: expected int, got True",
    ),
    "number for a bool": (edited(lambda head: head["config"].update(tied=0)), "config: tied: expected bool, got 0"),
    "wrong layers": (
        edited(lambda head: head["config"].update(layers="1.stack-3")),
        "config: layers: expected parts like .*'stack-3'",
    ),
    "no heads": (
        edited(lambda head: head["config"].update(heads=0)),
        "config: heads: expected a positive integer, got 0",
    ),
    "negative size": (
        edited(lambda head: head["config"].update(input_size=-1)),
        "config: input_size: expected a positive integer, got -1",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_CONFIGS)
def test_wrong_configs(wrong, folder):
    change, message = WRONG_CONFIGS[wrong]
    path = folder / "config.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as error:
        load(folder)
    assert re.match(rf"{re.escape(str(path))}(, line \d+)?: ", str(error.value))


def test_integers_as_floats_and_null(folder, tmp_path):
    path = folder / "config.json"
    path.write_text(edited(lambda head: head["config"].update(dropout=0))(path.read_text()))
    assert load(folder).config.dropout == 0
    lstm = save(make("LSTM").module, tmp_path / "lstm") / "config.json"
    lstm.write_text(edited(lambda head: head["config"].update(stack=7))(lstm.read_text()))
    with pytest.raises(ValueError, match="config: stack: expected str or null, got 7"):
        load(lstm.parent)


def tensors(change):
    def edit(path):
        found = load_file(path)
        change(found)
        save_file(found, path)

    return edit


def cut(keep):
    return lambda path: path.write_bytes(path.read_bytes()[:keep])


OUTPUT = "output.weight"
WRONG_TENSORS = {
    "empty": (cut(0), "not a safetensors file, or damaged"),
    "header cut": (cut(40), "not a safetensors file, or damaged"),
    "data cut": (cut(-3), "not a safetensors file, or damaged"),
    "pickle": (lambda path: torch.save({"x": torch.zeros(2)}, path), "not a safetensors file, or damaged"),
    "text": (lambda path: path.write_text("hello " * 100), "not a safetensors file, or damaged"),
    "huge header": (lambda path: path.write_bytes(b"\xff" * 64), "not a safetensors file, or damaged"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "not a safetensors file, or damaged"),
    "missing": (tensors(lambda x: x.pop(OUTPUT)), "missing tensors: 1 of 28, such as 'output.weight'"),
    "extra": (
        tensors(lambda x: x.update(more=torch.zeros(2))),
        "tensors that do not belong to this model: 1, such as 'more'$",
    ),
    "renamed": (
        tensors(lambda x: x.update({"output.wieght": x.pop(OUTPUT)})),
        "such as 'output.wieght'; 'output.weight' is missing",
    ),
    "shape": (
        tensors(lambda x: x.update({OUTPUT: torch.zeros(TOKENS, D + 1)})),
        rf"output.weight: expected shape \[{TOKENS}, {D}\], got \[{TOKENS}, {D + 1}\]",
    ),
    "dtype": (
        tensors(lambda x: x.update({OUTPUT: x[OUTPUT].double()})),
        "expected tensors of one floating-point dtype, got F32, F64",
    ),
    "integers": (
        tensors(lambda x: x.update({name: value.int() for name, value in x.items()})),
        "expected tensors of one floating-point dtype, got I32",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_TENSORS)
def test_wrong_tensors(wrong, folder):
    change, message = WRONG_TENSORS[wrong]
    path = folder / "model.safetensors"
    change(path)
    with pytest.raises(ValueError, match=message) as error:
        load(folder)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("at", [-1, -400])
def test_changed_parameters_are_refused(at, folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: the tensors do not match the checksum") as error:
        load(folder)
    assert str(error.value).startswith(f"{path}: ")


def test_exchanged_tensors_are_refused(folder):
    """Two tensors of the same shape are exchanged: all names and shapes stay the same."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    content = load_file(path)
    pairs = combinations(content, 2)
    first, second = next(
        (a, b) for a, b in pairs if content[a].shape == content[b].shape and not torch.equal(content[a], content[b])
    )
    content[first], content[second] = content[second], content[first]
    save_file(content, path, metadata)
    with pytest.raises(ValueError, match="do not match the checksum"):
        load(folder)


def test_files_without_a_checksum_are_accepted(folder):
    path = folder / "model.safetensors"
    expected = load(folder).state_dict()
    save_file(load_file(path), path)
    torch.testing.assert_close(load(folder).state_dict(), expected, atol=0, rtol=0)


def test_enormous_sizes_are_refused_before_allocation(folder):
    path = folder / "config.json"
    path.write_text(edited(lambda head: head["config"].update(input_size=10**12))(path.read_text()))
    with pytest.raises(ValueError, match=r"embedding.table.weight: expected shape \[1000000000000, 6\]"):
        load(folder)


def test_models_are_imported_lazily():
    """`import stackattn` does not import the models; `stackattn.load` does."""
    program = (
        "import sys, stackattn\n"
        "assert 'stackattn.models' not in sys.modules and 'safetensors' not in sys.modules\n"
        "assert 'load' in stackattn.__all__ and callable(stackattn.load)\n"
        "assert not hasattr(stackattn, 'loda')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
