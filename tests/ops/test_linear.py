"""Linear maps: oneDNN agrees with PyTorch's function, and is used only for large float32 products."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, vmap
from torch.nn import functional
from torch.torch_version import TorchVersion

from stackattn.nn.linear import Linear
from stackattn.ops import linear as module
from stackattn.ops.dispatch import kernel
from stackattn.ops.linear import linear, onednn_is_faster

SIZES = [(64, 16, 16), (70, 17, 31), (127, 18, 33), (320, 64, 2000), (80, 9000, 17), (20_000, 17, 40)]


@pytest.fixture
def calls(monkeypatch):
    """Use oneDNN on any processor, and record the arguments of its products; skip the test without oneDNN."""
    if kernel is None or not torch.backends.mkldnn.is_available():
        pytest.skip("oneDNN or the kernel is not available")
    found = []
    original = module.product
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(module, "product", lambda *args: found.append(args) or original(*args))
    return found


def inputs(M=300, K=64, N=300, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((M, K), (N, K), (N,))]


def with_gradients(function, *tensors):
    tensors = [x.detach().requires_grad_() for x in tensors]
    y = function(*tensors)
    weights = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view_as(y).to(y.dtype)
    return y.detach(), *torch.autograd.grad((y * weights).sum(), tensors)


def assert_same(found, expected, tolerance=2e-5):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("biased", [True, False])
def test_onednn_equals_pytorchs_function(calls, monkeypatch, size, biased):
    """Sizes that do and do not fill whole vector registers, and sums that are split; compared with float64."""
    monkeypatch.setattr(module, "SMALLEST", 0)
    tensors = inputs(*size)[: 3 if biased else 2]
    assert_same(with_gradients(linear, *tensors), with_gradients(functional.linear, *(x.double() for x in tensors)))
    rest = bool(size[0] % module._step(size[0]))  # rows that are multiplied separately in the backward pass
    assert len(calls) == 3 + 2 * rest  # forward, gradient of x, gradient of the weight


def test_the_gradients_of_single_inputs(calls):
    x, weight, bias = inputs()
    expected = with_gradients(functional.linear, x, weight, bias)[1:]
    weights = torch.linspace(-1, 2, 300 * 300).view(300, 300)
    for position in range(3):
        tensors = [x, weight, bias]
        tensors[position] = tensors[position].clone().requires_grad_()
        found = torch.autograd.grad((linear(*tensors) * weights).sum(), tensors[position])
        assert_same(found, expected[position : position + 1])
    assert len(calls) == 3 + 2 * 2  # the gradient of the bias is not a product


def layouts(rows, columns):
    wide = torch.randn(2 * rows, 2 * columns, generator=torch.Generator().manual_seed(rows + columns))
    return [
        wide[:rows, :columns].contiguous(),
        wide[:rows, :columns].T.contiguous().T,
        wide[:rows, :columns],
        wide[::2, :columns],
        wide[:rows, ::2],
        wide[:1, :columns].expand(rows, columns),
        wide[:rows, :1].expand(rows, columns),
        torch._neg_view(wide[:rows, :columns]),
        wide.flatten().unfold(0, columns, 1)[:rows],  # rows that overlap
    ]


def test_any_layout(calls):
    """x, the weight, the bias and the gradient may have any strides."""
    kinds = layouts(100, 64), layouts(700, 64), layouts(100, 700)
    bias = torch.linspace(-1, 1, 1400)[::2]
    count = len(kinds[0])
    for i in range(count):
        for shift in range(3):
            x, weight, grad = (kind[(i + j * shift) % count] for j, kind in enumerate(kinds))
            results = []
            for function in (linear, functional.linear):
                tensors = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
                y = function(*tensors, bias)
                results.append([y.detach(), *torch.autograd.grad(y, tensors, grad)])
            assert_same(*results)
    assert len(calls) == 5 * 3 * count


def test_any_shape(calls):
    x, weight, bias = inputs()
    assert torch.equal(linear(x.view(3, 100, 64), weight, bias), linear(x, weight, bias).view(3, 100, 300))
    assert len(calls) == 2


@pytest.mark.skipif(not onednn_is_faster(), reason="needs an AMD processor with AVX-512, and PyTorch 2.13 or newer")
@pytest.mark.parametrize(
    "size",
    [
        (300, 64, 300),
        (20_000, 64, 64),
        (64, 512, 9000),
        (320, 64, 24_000),
        (4096, 128, 16),
        (4095, 33, 33),
        (1000, 100, 999),
    ],
)
def test_any_number_of_threads(threads, size):
    """The same bits in all results but the gradient of the bias, which is a sum that PyTorch computes."""
    results = []
    for count in (1, 2, 3, 8, 16):
        threads(count)
        results.append(with_gradients(linear, *inputs(*size)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0][:3], other[:3], strict=True))


def test_second_derivatives_are_pytorchs(calls):
    def penalty(function, *tensors):
        tensors = [x.requires_grad_() for x in tensors]
        first = torch.autograd.grad(function(*tensors).square().sum(), tensors, create_graph=True)
        return *first, *torch.autograd.grad(sum(g.square().sum() for g in first), tensors)

    assert_same(penalty(linear, *inputs()), penalty(functional.linear, *inputs()))
    assert_same(penalty(linear, *inputs()[:2]), penalty(functional.linear, *inputs()[:2]))


def test_a_weight_that_is_computed_from_x(calls):
    """No gradient is counted twice, even with hooks."""

    def gradient(function, create_graph):
        x = inputs()[0].requires_grad_()
        x.register_hook(lambda grad: 2 * grad)
        return torch.autograd.grad(function(x, x * 2).square().sum(), x, create_graph=create_graph)

    for create_graph in (False, True):
        assert_same(gradient(linear, create_graph), gradient(functional.linear, create_graph))
    assert calls


def test_results_and_inputs_may_be_changed_in_place(calls):
    """Only tensors that the backward pass needs are saved."""
    x, weight, bias = (x.requires_grad_(i == 1) for i, x in enumerate(inputs()))
    expected = torch.autograd.grad(functional.linear(x, weight, bias).sum(), weight)
    y = linear(x, weight, bias)
    y += 1
    with torch.no_grad():
        bias.add_(1)
        weight.mul_(2)
    assert_same(torch.autograd.grad(y.sum(), weight), expected)
    y = linear(x, weight, bias)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    assert calls


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_tangents_of_gradients(calls):
    x, weight = (x.requires_grad_() for x in inputs()[:2])
    grad, tangent = torch.randn(300, 300), torch.randn(300, 300)
    results = []
    for function in (linear, functional.linear):
        y = function(x, weight)
        with forward_ad.dual_level():
            found = torch.autograd.grad(y, [x, weight], forward_ad.make_dual(grad, tangent))
            results.append([part.detach() for g in found for part in forward_ad.unpack_dual(g)])
    assert_same(*results)
    assert calls


def test_functional_transforms(calls):
    x, weight, bias = inputs()
    vmap(lambda w: linear(x, w))(weight[None])
    found = vmap(grad(lambda w: linear(x, w, bias).square().sum()))(weight[None])
    assert not calls
    weight.requires_grad_()
    assert_same(found, torch.autograd.grad(linear(x, weight, bias).square().sum(), weight))


@pytest.mark.slow
def test_compile(calls):
    torch._dynamo.reset()
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, *inputs()), with_gradients(functional.linear, *inputs()))
    assert not calls


def test_gradient_checkpointing(calls):
    def function(*tensors):
        return torch.utils.checkpoint.checkpoint(linear, *tensors, use_reentrant=False)

    assert_same(with_gradients(function, *inputs()), with_gradients(functional.linear, *inputs()))


def test_onednn_is_used_only_where_it_can_be(calls):
    x, weight, bias = inputs()
    used = module._is_faster
    assert used(x, weight, bias)
    assert used(x, weight, None)
    assert not used(x[:100], weight, bias)  # too small
    assert not used(x[:63], weight.repeat(20, 1), None)  # too few rows
    assert not used(x.repeat(100, 1), weight[:15], None)  # too few features
    assert not used(x.double(), weight.double(), None)
    assert not used(x, weight, bias.double())
    assert not used(x.bfloat16(), weight.bfloat16(), None)
    with torch.autocast("cpu", torch.bfloat16):
        assert not used(x, weight, bias)
    with forward_ad.dual_level():
        assert not used(x, weight, None)
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not used(x, weight, bias)
    finally:
        torch._C._set_mkldnn_enabled(True)


def test_other_processors_use_pytorchs_function(calls, monkeypatch):
    monkeypatch.setattr(module, "onednn_is_faster", lambda: False)
    tensors = inputs()
    found, expected = (with_gradients(f, *tensors) for f in (linear, functional.linear))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not calls


@pytest.mark.parametrize(
    ("vendor", "capability", "schema", "version", "expected"),
    [
        ("AuthenticAMD", "AVX512", module._SCHEMA, "2.13.0", True),
        ("GenuineIntel", "AVX512", module._SCHEMA, "2.13.0", False),
        ("AuthenticAMD", "AVX2", module._SCHEMA, "2.13.0", False),
        ("AuthenticAMD", "AVX512", "another signature", "2.13.0", False),
        ("AuthenticAMD", "AVX512", module._SCHEMA, "2.12.1", False),
    ],
)
def test_the_processor_and_the_version_of_pytorch_decide(
    calls, monkeypatch, tmp_path, vendor, capability, schema, version, expected
):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    description = tmp_path / "cpuinfo"
    description.write_text(f"processor : 0\nvendor_id : {vendor}\n")
    monkeypatch.setattr(module, "Path", lambda path: description)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(module, "_SCHEMA", schema)
    assert onednn_is_faster.__wrapped__() is expected


def test_without_cpuinfo_the_name_of_the_processor_decides(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "Path", lambda path: tmp_path / "missing")
    for name, expected in (("AMD64 Family 26 Model 2, AuthenticAMD", True), ("arm", False)):
        monkeypatch.setattr(module.platform, "processor", lambda name=name: name)
        assert module._is_amd() is expected


def test_batches_of_any_size_have_few_shapes(calls):
    """oneDNN keeps compiled code for each shape."""
    weight = torch.randn(300, 64, requires_grad=True)
    for rows in range(250, 1000):
        linear(torch.zeros(rows, 64, requires_grad=True), weight).sum().backward()
    shapes = {(a.shape, b.shape) for a, b, *_ in calls}
    assert len(shapes) <= 3 * 14 + 2 * 4  # whole batches, and their last rows in the backward pass
    assert len({module._step(rows) * -(-rows // module._step(rows)) for rows in range(64, 2**20)}) < 120


@pytest.mark.parametrize(
    "shapes", [[(300, 63), (300, 64)], [(300, 64), (300, 64), (299,)], [(300, 64), (300, 64, 64)], [(300, 64), ()]]
)
def test_errors_are_pytorchs(calls, shapes):
    tensors = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(RuntimeError) as expected:
        functional.linear(*tensors)
    with pytest.raises(RuntimeError) as found:
        linear(*tensors)
    assert str(found.value) == str(expected.value)
    for x, weight in (([1.0], tensors[1]), (tensors[0], None)):
        with pytest.raises(TypeError):
            linear(x, weight)
    assert not calls


def test_nan_and_infinity_are_kept(calls):
    x, weight, bias = inputs()
    x[3, 5], x[7, 2] = torch.nan, torch.inf
    found, expected = linear(x, weight, bias), functional.linear(x, weight, bias)
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert torch.equal(found.isnan(), expected.isnan())


def test_the_layer_equals_pytorchs(calls):
    layer = Linear(64, 300)
    x = inputs()[0]
    stock = torch.nn.Linear(64, 300)
    stock.load_state_dict(layer.state_dict())
    assert_same([layer(x)], [stock(x)])
    assert len(calls) == 1
    assert isinstance(layer, torch.nn.Linear)
