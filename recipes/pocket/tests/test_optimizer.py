"""Muon takes the steps of torch's, in the precision of the weights; and the learning rates."""

import pytest
import torch
from torch import nn

from recipes.pocket.optimizer import Muon, lr_schedule_factor, make_optimizers, orthogonalise
from recipes.pocket.pocket_model import ModelShape, make_model


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def after_steps(make_optimizer, start: torch.Tensor) -> torch.Tensor:
    matrix = nn.Parameter(start.clone())
    optimizer = make_optimizer(matrix)
    for step in range(3):
        matrix.grad = drawn(*start.shape, seed=step + 1)
        optimizer.step()
    return matrix.detach()


def test_three_steps_match_torch_within_the_precision_of_bfloat16():
    for shape in ((16, 48), (48, 16), (32, 32)):
        start = drawn(*shape)
        ours = after_steps(lambda matrix: Muon([{"params": [matrix]}], 0.1), start)
        theirs = after_steps(lambda m: torch.optim.Muon([m], lr=0.1, weight_decay=0.0), start)
        assert torch.allclose(ours, theirs, atol=0.01)
        assert not torch.allclose(ours, start, atol=0.05)


def test_singular_values_come_close_to_one():
    values = torch.linalg.svdvals(orthogonalise(drawn(4, 32, 64)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_matrices_of_one_shape_do_not_mix():
    alone, together = drawn(16, 32, seed=1), drawn(3, 16, 32, seed=2)
    together[1] = alone
    assert torch.allclose(orthogonalise(together)[1], orthogonalise(alone[None])[0], atol=1e-5)


def test_blocks_are_orthogonalised_apart_along_either_axis():
    gradient = drawn(64, 64)
    for axis, cut in ((0, lambda m: m.unflatten(0, (4, 16))), (1, lambda m: m.mT.unflatten(0, (4, 16)))):
        matrix = nn.Parameter(torch.zeros(64, 64))
        matrix.grad = gradient.clone()
        Muon([{"params": [matrix], "blocks": 4, "axis": axis}], 1.0).step()
        expected = orthogonalise(cut(gradient))
        assert torch.allclose(cut(-matrix.detach()), expected, atol=1e-4)


def test_every_parameter_has_exactly_one_optimizer():
    model = make_model(ModelShape(), 100, 0, seed=0)
    optimizers = make_optimizers(model, 0.01, 0.001)
    owned = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(parameter) for parameter in model.parameters())


@pytest.mark.parametrize(
    ("restart", "rates"),
    [
        (1.0, {0.0: 1.0, 0.25: 0.75, 0.9: 0.1, 0.999: 0.02, 1.0: 0.02, 1.01: 0.02}),
        (0.75, {0.0: 1.0, 0.375: 0.5, 0.749: 0.02, 0.75: 0.5, 0.875: 0.25, 0.999: 0.01, 1.01: 0.01}),
    ],
)
def test_rates_fall_to_almost_nothing_and_again_after_a_restart(restart, rates):
    assert {share: lr_schedule_factor(share, restart) for share in rates} == pytest.approx(rates)
