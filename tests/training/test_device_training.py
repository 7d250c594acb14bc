"""Training on a GPU: a step waits once, for its loss; checkpoints move between devices; ranks and sweeps share GPUs."""

import sys
from multiprocessing import get_context

import pytest
import torch
from fake_gpu import GPU, gpu_of_zeros
from reversal import make_corpus
from runs import tiny

from stackattn.cli import main
from stackattn.config import from_values
from stackattn.lines import read_json_object
from stackattn.models import TransformerLM, TransformerLMConfig
from stackattn.ops import extension, states
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


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    for module in (extension, states):  # tensors without values have no addresses
        monkeypatch.setattr(module, "same_place", lambda one, other: one is other)
    optimizer = sys.modules["torch.optim.optimizer"]  # fused Adam is refused on unknown devices
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", GPU.type])


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
    if name == "lm, pieces":
        data["piece_tokens"] = 4
    return from_values(MTConfig if name == "mt" else lm.LMConfig, {"data": data, "model": MODEL})


def build(chosen, task):
    with GPU:
        if isinstance(chosen, cfl.CFLConfig):
            return cfl.build_cfl_model(chosen, len(task.language.symbols))
        return chosen.build_model(task.tokenizer)


@pytest.mark.parametrize("name", ["cfl, transformer", "cfl, lstm", "lm", "lm, pieces", "mt"])
def test_a_training_step_waits_only_for_its_loss(name, corpora):
    chosen = config(name, corpora)
    task, _ = chosen.make()
    with gpu_of_zeros() as (gpu, reads):
        training = _Training(build(chosen, task), task, chosen.training, None, None, Processes(gpu.type))
        # the last of the pieces is not full, and its length would be read
        batch = [0, 1] if name == "lm, pieces" else task.epoch(torch.Generator().manual_seed(0))[0]
        training._step(batch, 1)
        assert reads == [()]
        stored = [x for values in training.optimizer.state.values() for x in values.values()]
        assert len(stored) >= len(list(training.model.parameters()))
        assert {x.device for x in stored} == {gpu}
        training.model.eval()
        with torch.no_grad():
            assert task.evaluate(training.model)["cross_entropy"] == 0
        assert len(reads) > 1


def test_evaluation_by_length(monkeypatch, tmp_path):
    chosen = tiny()
    task, _ = chosen.make()
    model = build(chosen, task)
    monkeypatch.setattr(cfl, "config_of", lambda *_: chosen)
    monkeypatch.setattr(cfl, "load", lambda _: model)
    with gpu_of_zeros() as (gpu, _):
        found = cfl.evaluate_run(tmp_path, (4, 6), 2, device=gpu.type)
    assert [row["length"] for row in found["lengths"]] == [4, 6]


def test_translation(corpora):
    chosen = config("mt", corpora)
    task, _ = chosen.make()
    with gpu_of_zeros():
        found = translator.Translator(build(chosen, task), task.tokenizer, max_tokens=3).translate(["a b", "c"])
    assert len(found) == 2


def test_a_device_that_is_missing_is_named(capsys, tmp_path):
    command = ["cfl", "sweep", "--out", str(tmp_path), "--set", "language.name=dyck"]
    assert main([*command, "--device", "cuda:99"]) == 2
    assert "device: expected an available device, got 'cuda:99', but PyTorch finds none" in capsys.readouterr().err


def tiny_model(device):
    with device:
        return TransformerLM(TransformerLMConfig(input_size=3, output_size=3, **MODEL))


def optimizer_of(model):
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")
def test_checkpoints_move_between_devices(tmp_path):
    cpu, state = torch.device("cpu"), {"progress": {"examples": 1}}
    on_cpu, on_gpu = tiny_model(cpu), tiny_model(GPU)
    optimizers = {GPU: optimizer_of(on_gpu), cpu: optimizer_of(on_cpu)}
    with gpu_of_zeros() as (_, reads):  # values that come from the GPU are zeros
        save_checkpoint(tmp_path, on_gpu, optimizers[GPU], state, [torch.get_rng_state()])
        assert len(reads) == len(on_gpu.state_dict()) + 3 * len(list(on_gpu.parameters()))
    saved = read_json_object(tmp_path / STATE)
    for model in (on_cpu, on_gpu):
        device = next(model.parameters()).device
        load_checkpoint(tmp_path, model, optimizers[device], saved)
        moments = [x for values in optimizers[device].state.values() for x in values.values()]
        assert {x.device for x in (*model.state_dict().values(), *moments)} == {device}
        assert len(moments) == 3 * len(list(model.parameters()))
    assert not any(x.any() for x in on_cpu.state_dict().values())
    assert not any(x.any() for values in optimizers[cpu].state.values() for x in values.values())


@pytest.fixture
def two_gpus(monkeypatch):
    """torch.cuda as on a machine with two GPUs. The list has the devices that were set."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_of_a_machine_has_its_gpu(monkeypatch, two_gpus, rank):
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
        ValueError, match="device: expected cuda under torchrun, which gives each process a GPU, got 'cud"
    ):
        Processes("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="device: expected an available device, got 'cuda:2', but PyTorch finds 2 of"):
        Processes("cuda")


def test_a_single_process_may_choose_its_gpu(two_gpus):
    assert Processes("cuda:1").device == torch.device("cuda", 1)
    assert Processes("cuda").device == torch.device("cuda", 0)
    assert two_gpus == [torch.device("cuda", 1), torch.device("cuda", 0)]


class Context:
    """Records the devices of processes, which all fail at once."""

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
    with pytest.raises(
        ValueError, match="device: expected cpu or cuda on a cluster, which chooses the GPU, got 'cuda:1'"
    ):
        run_all_on_cluster([(tmp_path, tiny())], "local", device="cuda:1")

    class Ray:
        resources = {"CPU": 2.0, "memory": 8e9}  # noqa: RUF012

        def nodes(self):
            return [{"Alive": True, "NodeID": "1", "NodeManagerHostname": "one", "Resources": self.resources}]

    _Capacity(Ray(), "local", 2, gpus=0).check()
    assert not caplog.records
    _Capacity(Ray(), "local", 2, gpus=1).check()
    assert "no node has a core, a GPU and 2 GB of memory for a run" in caplog.text
