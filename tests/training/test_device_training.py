"""Training on simulated GPUs: a step waits only for its loss, checkpoints move between devices, sweeps use all GPUs."""

import copy
from dataclasses import replace
from itertools import product
from multiprocessing import get_context

import pytest
import torch
from gpu_with_values import gpu_with_values
from reversal import make_corpus
from runs import tiny

from stackattn.cli import main
from stackattn.config import from_values
from stackattn.lines import read_json_object
from stackattn.models import TransformerLM, TransformerLMConfig
from stackattn.text.monolingual_corpus import write_monolingual
from stackattn.text.vocabulary import count_vocabulary
from stackattn.training import cfl, lm, processes, sweep, translator
from stackattn.training.checkpoint import load_checkpoint, save_checkpoint
from stackattn.training.cluster import _Capacity, run_all_on_cluster
from stackattn.training.loop import _Training
from stackattn.training.mt import MTConfig
from stackattn.training.processes import Processes
from stackattn.training.run_files import STATE

SENTENCES = [["a", "b"], ["a"], ["b", "a", "a", "b"], ["b"], ["a", "a", "a"], ["b", "b"]]
MODEL = {"layers": "nondeterministic-2-2-3.superposition-3", "d_model": 6, "heads": 2, "hidden_size": 8}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    splits = {"train": SENTENCES, "validation": SENTENCES[:4], "test": SENTENCES[3:]}
    write_monolingual(folder / "lm", splits, count_vocabulary(SENTENCES, 1, "<unk>"), {})
    return {"lm": folder / "lm", "mt": make_corpus(folder)}


def config(name, corpora):
    if name.startswith("cfl"):
        return tiny(name.removeprefix("cfl, "))
    data = {"folder": str(corpora[name[:2]]), "batch_tokens": 12}
    if name == "lm, rows":
        data["row_tokens"] = 4
    return from_values(MTConfig if name == "mt" else lm.LMConfig, {"data": data, "model": MODEL})


def build(chosen, task):
    if isinstance(chosen, cfl.CFLConfig):
        return chosen.build_model(len(task.language.symbols))
    return chosen.build_model(task.tokenizer)


@pytest.mark.parametrize("name", ["cfl, transformer", "cfl, lstm", "lm", "lm, rows", "mt"])
def test_a_training_step_waits_only_for_its_loss(name, corpora):
    chosen = config(name, corpora)
    if hasattr(chosen.model, "dropout"):  # the random numbers depend on the device
        chosen = replace(chosen, model=replace(chosen.model, dropout=0.0))
    task, _ = chosen.make()
    model = build(chosen, task)
    twin = copy.deepcopy(model)
    # the last row is not full, so its length would be read from the GPU
    batch = [0, 1] if name == "lm, rows" else task.epoch(torch.Generator().manual_seed(0))[0]
    with gpu_with_values() as gpu:
        model.to(gpu.device)
        gpu.copies.clear()
        training = _Training(model, task, chosen.training, None, None, Processes("cuda"))
        training._step(batch, 1)
        assert (gpu.reads, gpu.copies) == ([()], [])
        stored = [x for values in training.optimizer.state.values() for x in values.values()]
        assert len(stored) >= len(list(model.parameters()))
        assert {x.device for x in stored} == {gpu.device}
        with torch.no_grad():
            found = task.evaluate(model.eval())
        assert len(gpu.reads) > 1
        model.cpu()
    training = _Training(twin, task, chosen.training, None, None, Processes("cpu"))
    training._step(batch, 1)
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert found["cross_entropy"] == pytest.approx(task.evaluate(twin.eval())["cross_entropy"], rel=1e-4)


def test_evaluation_by_length(monkeypatch, tmp_path):
    chosen = tiny()
    task, _ = chosen.make()
    model = build(chosen, task)
    monkeypatch.setattr(cfl, "config_of", lambda *_: chosen)
    monkeypatch.setattr(cfl, "load", lambda _: model)
    expected = cfl.evaluate_run(tmp_path, (4, 6), 2)
    with gpu_with_values():
        found = cfl.evaluate_run(tmp_path, (4, 6), 2, device="cuda")
    for x, y in zip(found["lengths"], expected["lengths"], strict=True):
        assert x == pytest.approx(y, rel=1e-4)


def test_translation(corpora):
    chosen = config("mt", corpora)
    task, _ = chosen.make()
    model = build(chosen, task)
    expected = translator.Translator(model, task.tokenizer, max_tokens=3).translate(["a b", "c"])
    with gpu_with_values() as gpu:
        model.to(gpu.device)
        assert translator.Translator(model, task.tokenizer, max_tokens=3).translate(["a b", "c"]) == expected


def test_a_device_that_is_missing_is_named(capsys, tmp_path):
    command = ["cfl", "sweep", "--out", str(tmp_path), "--set", "language.name=dyck"]
    assert main([*command, "--device", "cuda:99"]) == 2
    assert "--device: 'cuda:99' is not available: PyTorch finds no device of this type" in capsys.readouterr().err


def test_checkpoints_move_between_devices(tmp_path):
    def trained(device, value):
        """Return a model after an optimiser step in which all gradients are `value`, and the optimiser."""
        model = TransformerLM(TransformerLMConfig(input_size=3, output_size=3, **MODEL)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        optimizer.step()
        return model, optimizer

    def tensors(model, optimizer):
        moments = optimizer.state_dict()["state"]
        return *model.state_dict().values(), *(moments[i][key] for i in sorted(moments) for key in sorted(moments[i]))

    with gpu_with_values() as gpu:
        devices = torch.device("cpu"), gpu.device
        for source, target in product(devices, repeat=2):
            saved, loaded = trained(source, 1.0), trained(target, -1.0)
            save_checkpoint(tmp_path, *saved, {"progress": {"examples": 1}}, [torch.get_rng_state()])
            load_checkpoint(tmp_path, *loaded, read_json_object(tmp_path / STATE))
            assert {x.device for x in tensors(*loaded)} == {target}
            for x, y in zip(tensors(*loaded), tensors(*saved), strict=True):
                assert torch.equal(x.cpu(), y.cpu())


@pytest.fixture
def two_gpus(monkeypatch):
    """Make torch.cuda behave as on a machine with two GPUs, and return the list of the devices that are set."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_of_a_machine_has_its_own_gpu(monkeypatch, two_gpus, rank):
    """The second machine of two: ranks 2 and 3 have the local ranks 0 and 1."""
    environment = {"RANK": 2 + rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    groups = []
    monkeypatch.setattr(processes.dist, "init_process_group", lambda backend, **_: groups.append(backend))
    expected = torch.device("cuda", rank)
    for device, backend in (("cuda", "nccl"), ("cpu", "gloo")):
        found = Processes(device)
        with found.together():
            pass
        assert groups.pop() == backend
        assert found.device == (expected if device == "cuda" else torch.device("cpu"))
    assert two_gpus == [expected]
    with pytest.raises(
        ValueError, match="device: expected cuda without a number under torchrun, which assigns the GPUs, got 'cud"
    ):
        Processes("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="device: 'cuda:2' is not available: PyTorch finds 2 devices of this type"):
        Processes("cuda")


def test_a_single_process_may_choose_its_gpu(two_gpus):
    assert Processes("cuda:1").device == torch.device("cuda", 1)
    assert Processes("cuda").device == torch.device("cuda", 0)
    assert two_gpus == [torch.device("cuda", 1), torch.device("cuda", 0)]


class Context:
    """A multiprocessing context that records the devices of its processes, each of which fails immediately."""

    def __init__(self):
        self.devices, self.Pipe = [], get_context("spawn").Pipe

    def Process(self, target, args):
        self.devices.append(args[-1])
        return self

    def start(self):
        pass

    join = start
    exitcode = 1


@pytest.mark.parametrize(
    ("device", "number", "expected"),
    [
        ("cuda", None, ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 4, ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", None, ["cuda:1"] * 5),
        ("cpu", 2, ["cpu"] * 5),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_the_runs_of_a_sweep_share_all_gpus(monkeypatch, tmp_path, device, number, expected):
    context = Context()
    monkeypatch.setattr(sweep, "get_context", lambda _: context)
    jobs = [(tmp_path / str(i), tiny()) for i in range(5)]
    failed = sweep.run_all(jobs, number, device=device)
    assert len(failed) == 5
    assert sorted(context.devices) == sorted(expected)


def test_a_run_of_a_sweep_is_trained_on_its_device(monkeypatch, tmp_path):
    devices = []
    monkeypatch.setattr(sweep, "run_experiment", lambda *_, device, **__: devices.append(device))
    sweep.run_one(tiny(), tmp_path / "run", None, None, None, "cuda:1")
    assert devices == ["cuda:1"]


@pytest.mark.parametrize("command", [["cfl", "sweep", "--restarts", "1"], ["reproduce", "figure-2", "--tasks", "dyck"]])
def test_commands_pass_the_device_on(monkeypatch, tmp_path, command):
    devices = []
    monkeypatch.setattr(sweep, "run_all", lambda *args: devices.append(args[-1]) or [])
    monkeypatch.setattr("stackattn.training.cluster.run_all_on_cluster", lambda *args: devices.append(args[-1]) or [])
    sets = ["--set", "language.name=dyck"] if command[0] == "cfl" else ["--models", "tf", "--restarts", "1"]
    for more in ([], ["--cluster", "local"]):
        main([*command, *more, "--device", "cuda", "--out", str(tmp_path), *sets])
    assert devices == ["cuda", "cuda"]


def test_a_cluster_chooses_the_gpu(caplog, tmp_path):
    with pytest.raises(ValueError, match=r"device: expected cpu or cuda \(the cluster chooses the GPU\), got 'cuda:1'"):
        run_all_on_cluster([(tmp_path, tiny())], "local", device="cuda:1")

    class Ray:
        resources = {"CPU": 2.0, "memory": 8e9}  # noqa: RUF012

        def nodes(self):
            return [{"Alive": True, "NodeID": "1", "NodeManagerHostname": "one", "Resources": self.resources}]

    _Capacity(Ray(), "local", 2, gpus=0).check()
    assert not caplog.records
    _Capacity(Ray(), "local", 2, gpus=1).check()
    assert "no node has a core, a GPU and 2 GB of memory for a run" in caplog.text
