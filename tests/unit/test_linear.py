"""What oneDNN multiplies is what torch multiplies, with the weights of now, and trains as before."""

import copy

import pytest
import torch
from torch import nn

from memory_program.inference.linear import OneDnnLinear, onednn_is_faster, use_onednn


@pytest.fixture
def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 8, bias=False)).eval()
    ours = copy.deepcopy(plain)
    use_onednn(ours)
    assert [type(layer) for layer in ours] == [OneDnnLinear, nn.SiLU, OneDnnLinear]
    return plain, ours


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (300,), (2, 5), (3, 50)])
def test_it_gives_what_torch_gives(pair: tuple[nn.Module, nn.Module], shape: tuple[int, ...]) -> None:
    plain, ours = pair
    inputs = torch.randn(*shape, 24)
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs), plain(inputs))


def test_a_row_does_not_depend_on_the_rows_beside_it(pair: tuple[nn.Module, nn.Module]) -> None:
    inputs = torch.randn(300, 24)
    with torch.no_grad():
        assert torch.equal(pair[1](inputs)[:9], pair[1](inputs[:9]))


def test_it_uses_weights_that_were_changed_in_place(pair: tuple[nn.Module, nn.Module]) -> None:
    plain, ours = pair
    inputs = torch.randn(16, 24)
    with torch.no_grad():
        ours(inputs)
        for network in (plain, ours):
            for weight in network.parameters():
                weight.data.mul_(0.5)
        torch.testing.assert_close(ours(inputs), plain(inputs))


def test_it_has_the_same_gradients_and_the_same_names(pair: tuple[nn.Module, nn.Module]) -> None:
    plain, ours = pair
    inputs = torch.randn(16, 24)
    for network in (plain, ours):
        network(inputs).square().sum().backward()
    expected, found = dict(plain.named_parameters()), dict(ours.named_parameters())
    assert list(found) == list(expected)
    for name, weight in found.items():
        torch.testing.assert_close(weight.grad, expected[name].grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_numbers_are_left_to_torch(dtype: torch.dtype) -> None:
    layer = nn.Linear(24, 8).to(dtype)
    inputs = torch.randn(16, 24, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(OneDnnLinear(layer)(inputs), layer(inputs))


def test_a_kind_of_linear_layer_of_its_own_stays() -> None:
    class Doubled(nn.Linear):
        """Not what its name says."""

    network = nn.Sequential(Doubled(4, 4))
    use_onednn(network)
    assert type(network[0]) is Doubled


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"architecture": "x86_64", "cpu_name": "AMD EPYC 9R14", "avx512_f": True}, True),
        ({"architecture": "x86_64", "cpu_name": "Intel Xeon", "avx512_f": True}, False),
        ({"architecture": "x86_64", "cpu_name": "AMD EPYC 7R13", "avx512_f": False}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_onednn_is_for_wide_processors_of_other_makers(monkeypatch, processor, expected) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor)
    assert onednn_is_faster() is expected
