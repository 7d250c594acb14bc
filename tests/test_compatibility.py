"""Files in old formats can still be read: committed models of format 1 give the recorded logits."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stackattn.compatibility import upgrade_model_config, upgrade_tensor_name
from stackattn.lines import read_json_object
from stackattn.models import Seq2SeqConfig, Seq2SeqTransformer, load, save

RESULTS = Path(__file__).parents[1] / "experiments" / "results"
RECORDED = json.loads((Path(__file__).parent / "recorded_logits.json").read_text())
MODELS = sorted(
    path.parents[1].relative_to(RESULTS).as_posix()
    for path in RESULTS.rglob("best/config.json")
    if json.loads(path.read_text())["format_version"] == 1
)


def last_logits(model):
    """Logits after the last token of two sequences of 12 and 9 tokens."""
    bos = model.config.input_size - 1
    tokens = (torch.arange(24).reshape(2, 12) * 7 + 3) % bos
    tokens[:, 0] = bos
    with torch.no_grad():
        logits = model.double()(tokens, torch.tensor([12, 9]))
    return torch.stack([logits[0, 11], logits[1, 8]])


def test_all_models_of_the_first_format_are_recorded():
    assert set(MODELS) == set(RECORDED)


@pytest.mark.parametrize("name", MODELS)
def test_committed_models_give_the_recorded_logits(name):
    """The numbers in recorded_logits.json were computed by a version that wrote format 1."""
    expected = torch.tensor(RECORDED[name], dtype=torch.float64)
    torch.testing.assert_close(last_logits(load(RESULTS / name / "best")), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["figure-2/marked-reversal/tf-nd/00", "figure-2/marked-reversal/lstm-nd/00"])
def test_an_old_model_is_saved_in_the_new_format(name, tmp_path):
    model = load(RESULTS / name / "best")
    saved = json.loads((save(model, tmp_path) / "config.json").read_text())
    assert saved["format_version"] == 3
    assert "published" not in saved["config"]
    again = load(tmp_path)
    assert again.config == model.config
    assert torch.equal(last_logits(again), last_logits(model))


@pytest.mark.parametrize("published", [True, False])
def test_published_models(published):
    old = {"published": published, "layers": "5"}
    added = {"positions": "sinusoidal", "xavier_layer": None}
    new = {"push_activation": "published" if published else "sigmoid", "layers": "5", **added}
    assert upgrade_model_config("TransformerLM", old, 1) == new
    lstm = {"stack_init": "uniform" if published else "xavier"}
    assert upgrade_model_config("LSTMLM", {"published": published}, 1) == lstm
    assert old == {"published": published, "layers": "5"}  # not changed in place
    assert upgrade_model_config("TransformerLM", old, 2) == {**old, **added}
    assert upgrade_model_config("TransformerLM", old, 3) == old


def test_tensor_names():
    assert upgrade_tensor_name("TransformerLM", "stack.norm.weight", 1) == "trunk.norm.weight"
    assert upgrade_tensor_name("TransformerLM", "stack.norm.weight", 2) == "stack.norm.weight"
    assert upgrade_tensor_name("LSTMLM", "stack.bottom", 1) == "stack.bottom"


def test_an_old_translator_loads(tmp_path):
    config = Seq2SeqConfig(
        input_size=7, output_size=5, layers="1.superposition-3", decoder_layers="2", d_model=8, heads=2, hidden_size=16
    )
    model = Seq2SeqTransformer(config).eval()
    path = save(model, tmp_path) / "config.json"
    saved = read_json_object(path)
    old = saved["config"]
    del old["push_activation"]
    old.update(encoder_layers=old.pop("layers"), published=False)
    path.write_text(json.dumps(saved | {"format_version": 1}))
    loaded = load(tmp_path)
    assert loaded.config == config
    source, target = torch.tensor([[0, 1, 2]]), torch.tensor([[6, 3]])
    assert torch.equal(loaded(source, target), model(source, target))


def test_errors_name_the_new_tensors(tmp_path):
    folder = save(load(RESULTS / "figure-2/dyck/tf/00/best"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["stack.norm.weight"] = tensors.pop("trunk.norm.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"such as 'stack.norm.weight'; 'trunk.norm.weight' is missing"):
        load(folder)
