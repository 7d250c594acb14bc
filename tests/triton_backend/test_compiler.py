"""The kernels compiled for GPUs that are not present: memory, registers, 64-bit offsets, tensor-core instructions."""

import inspect
import re
import subprocess
import warnings
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stackattn.ops.triton_backend import kernels, window_kernels
from stackattn.ops.triton_backend.launches import configuration, diagonal_configuration

KERNELS = [
    *("fill_P_and_D", "fill_F", "walk_back_F", "walk_back_D", "walk_back_P", "collect"),
    *("fill_row", "walk_back_row", "rows_to_P", "collect_diagonals"),
]
SMALL_PRODUCTS = ["fill_diagonal", "walk_back_diagonal"]  # without tensor cores
SIZES = dict.fromkeys(("n", "B", "j", "t", "width", "window", "s", "tau", "x", "origin", "low", "high"), "i32")
NVIDIA_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
# Compute capability or architecture: target, and the most shared memory that a block may use, in bytes. Blocks may use
# 99 KB on sm_86 and sm_89, less than on sm_80 and sm_90.
GPUS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 99 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 99 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}


# What Triton assumes about the addresses of tensors: PyTorch aligns them, and AMD has faster loads for less than 2 GB.
ALIGNED = {"cuda": [["tt.divisibility", 16]], "hip": [["tt.divisibility", 16], ["tt.pointer_range", 32]]}


def compiled(name, gpu, Q, S, addresses):
    kernel = getattr(kernels, name, None) or getattr(window_kernels, name)
    options = diagonal_configuration(Q, S) if name in SMALL_PRODUCTS else configuration(Q, S)
    options = {"BQ": 1 << (Q - 1).bit_length(), "SUPERPOSITION": Q * S == 1, **options}
    launch = {key: options[key] for key in ("num_warps", "num_stages", "enable_fp_fusion")}
    names = inspect.signature(kernel.fn).parameters
    constants = {x: options[x] for x in names if x in options}
    signature = {x: "constexpr" if x in constants else SIZES.get(x, "*fp64") for x in names}
    pointers = [i for i, kind in enumerate(signature.values()) if kind == "*fp64"]
    assumed = {(i,): ALIGNED[gpu.backend] for i in pointers} if addresses == "aligned" else {}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=assumed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # newer versions of Triton announce changes of defaults
        return triton.compile(source, target=gpu, options=launch)


def nvidia(cubin, tmp_path):
    """Bytes of stack and local memory, and the number of float64 tensor-core instructions."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)

    def dump(option):
        return subprocess.run(
            [NVIDIA_TOOLS / "cuobjdump", option, path], capture_output=True, text=True, check=True
        ).stdout

    stack, local = re.search(r"STACK:(\d+).*LOCAL:(\d+)", dump("--dump-resource-usage")).groups()
    return int(stack) + int(local), len(re.findall(r"\bDMMA\b", dump("-sass")))


def amd(assembly):
    spilled = sum(int(x) for x in re.findall(r"\.[sv]gpr_spill_count:\s*(\d+)", assembly))
    return spilled, len(re.findall("v_mfma_f64", assembly))


@pytest.mark.parametrize("addresses", ["aligned", pytest.param("any", marks=pytest.mark.slow)])
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", KERNELS + SMALL_PRODUCTS)
@pytest.mark.parametrize(
    ("Q", "S"), [(3, 3), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 1), (4, 8)))]
)
def test_resources(name, gpu, Q, S, addresses, tmp_path):
    target, limit = GPUS[gpu]
    found = compiled(name, target, Q, S, addresses)
    assert found.metadata.shared <= limit
    # a chart can have more than 2^31 entries: all indices are int64 before they are multiplied
    assert not re.findall(r"arith\.muli .* : (?:i32|tensor<[x\d]+xi32>)", found.asm["ttir"])
    assert "tt.atomic" not in found.asm["ttir"]  # sums would depend on the order of programs
    spilled, tensor_core = amd(found.asm["amdgcn"]) if gpu.startswith("gfx") else nvidia(found.asm["cubin"], tmp_path)
    assert spilled == 0
    assert (tensor_core > 0) == (name in KERNELS)
    print(name, gpu, (Q, S), addresses, found.metadata.shared, tensor_core)
