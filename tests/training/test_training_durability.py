"""Checkpoints survive a crash of the machine: the system calls, recorded with strace, flush files before renaming them.

The order of the calls determines what a file system may lose. The content and the name of a reported checkpoint must be
on the disk, and the state must not name a tensor file that could still be lost.
"""

import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

CALLS = "fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,write"
PROGRAM = """
import os, sys
from pathlib import Path
import torch
from stackattn.training.checkpoint import save_checkpoint

if "unflushed" in sys.argv:
    os.fsync = lambda handle: None
folder = Path(sys.argv[1])
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(model.parameters())
for examples in (1, 2):
    save_checkpoint(folder, model, optimizer, {"progress": {"examples": examples}}, [torch.get_rng_state()])
    os.write(1, b"CHECKPOINT REPORTED")
"""


def recorded_calls(folder, *arguments):
    """Return the calls in order: ("fsync", "state.json.partial"), ("rename", "state.json"), ..., ("reported", "")."""
    trace = folder / "trace"
    run = folder / "run"
    run.mkdir()
    tracer = ["strace", "-f", "-y", "--seccomp-bpf", "-s", "20", "-o", str(trace), "-e", f"trace={CALLS}"]
    done = subprocess.run(
        [*tracer, sys.executable, "-c", PROGRAM, str(run), *arguments], capture_output=True, text=True
    )
    if "ptrace" in done.stderr and done.returncode:
        pytest.skip(f"strace is not allowed to trace processes: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = []
    for line in trace.read_text().splitlines():
        if "CHECKPOINT REPORTED" in line:
            found.append(("reported", ""))
        elif str(run) in line and (call := re.search(r"(fsync|fdatasync|rename|unlink)\w*\(", line)):
            path = re.findall(rf"{re.escape(str(run))}(/[^\">]*)?[\">]", line)[-1]
            name = re.sub(r"\.(.*)\.\d+-\w+\.partial$", r"\1.partial", path.removeprefix("/last/"))
            found.append((call[1].replace("fdatasync", "fsync"), name or "/"))
    return found


def check_order(calls):
    """Raise AssertionError unless every checkpoint is on the disk when it is reported."""

    def index(*call):
        assert call in calls, f"{call} is missing from {calls}"
        return calls.index(call)

    for tensors in ("000000001.safetensors", "000000002.safetensors"):
        start, end = 0, calls.index(("reported", ""))
        for name in (tensors, "state.json"):
            flushed, renamed = index("fsync", f"{name}.partial"), index("rename", name)
            named = renamed + calls[renamed:].index(("fsync", "/last"))
            assert start <= flushed < renamed < named < end  # the state comes after the tensors that it names
            start = named
        if ("unlink", "000000001.safetensors") in calls[:end]:
            assert index("unlink", "000000001.safetensors") > start  # the old tensors are kept until then
        calls = calls[end + 1 :]
    assert calls == []


@pytest.mark.slow
def test_a_reported_checkpoint_is_on_the_disk(tmp_path):
    check_order(recorded_calls(tmp_path))


@pytest.mark.slow
def test_the_check_finds_missing_flushes(tmp_path):
    calls = recorded_calls(tmp_path, "unflushed")
    assert ("rename", "state.json") in calls
    with pytest.raises(AssertionError, match=r"'fsync', '000000001\.safetensors\.partial'\) is missing"):
        check_order(calls)
