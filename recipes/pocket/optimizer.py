"""Muon for the matrices, AdamW for everything else."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipes.pocket.pocket_model import decoder_layers

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
_ITERATIONS = 5
_MIN_LR_SHARE = 0.02  # of a line's first rate: what is left at its end


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised (Jordan et al. 2024).

    Deviations: ``torch.optim.Muon`` orthogonalises in bfloat16 everywhere; this one where that is faster: not
    on CPUs without AVX-512 (1 against 83 GFLOP/s, measured on an AVX2 machine). And the matrices of
    a group may be cut into ``blocks`` of rows (``axis`` 0) or columns (1), one for each attention head, that
    are orthogonalised apart: they are parameters of different heads, and small ones cost an eighth.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float, momentum: float = 0.95) -> None:
        """Make the optimiser; a block of ``r`` rows and ``c`` columns moves by ``lr * sqrt(max(1, r/c))``.

        Args:
            groups: of matrices of one shape each: ``params``, and ``blocks`` and ``axis`` if they are cut.
            lr: the learning rate.
            momentum: how much of the average of the gradients before is kept.
        """
        super().__init__(groups, {"lr": lr, "momentum": momentum, "blocks": 1, "axis": 0})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # no closures here
        """Take a step."""
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            momenta = torch.stack([self._momentum(matrix, group["momentum"]) for matrix in matrices])
            stacked = momenta.mT if group["axis"] else momenta
            blocks = stacked.unflatten(1, (group["blocks"], -1)).flatten(0, 1)
            updates = orthogonalise(blocks).unflatten(0, (len(matrices), -1)).flatten(1, 2)
            scale = max(1.0, blocks.shape[1] / blocks.shape[2]) ** 0.5
            for matrix, update in zip(matrices, updates, strict=True):
                matrix.sub_(update.mT if group["axis"] else update, alpha=group["lr"] * scale)

    def _momentum(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        buffer: Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(buffer, momentum)  # Nesterov's look ahead


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of a stack of matrices close to one, by Newton and Schulz's iteration."""
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if is_bf16_fast(x.device):
        x = x.bfloat16()
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


def lr_schedule_factor(share: float, restart: float) -> float:
    """Give what learning rates are multiplied with: twice it falls in a line, to almost nothing.

    A warm restart (Loshchilov and Hutter 2016, https://arxiv.org/abs/1608.03983), with lines for cosines; the
    second line begins half as high as the first.

    Args:
        share: how much of the training is done, from 0 to 1.
        restart: the share at which it begins again; with 1 it falls once.
    """
    if share < restart:
        return max(_MIN_LR_SHARE, 1 - share / restart)
    return 0.5 * max(_MIN_LR_SHARE, (1 - share) / (1 - restart)) if restart < 1 else _MIN_LR_SHARE


def is_bf16_fast(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 faster than float32; many CPUs do so eighty times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]


def make_optimizers(
    model: LlamaForCausalLM, muon_rate: float, adam_rate: float
) -> list[torch.optim.Optimizer]:
    """Make the optimisers of a network: Muon for what its layers multiply with, AdamW for the rest."""
    layers, heads = decoder_layers(model), model.config.num_attention_heads
    inputs = ("q_proj", "k_proj", "v_proj")
    groups: list[dict[str, Any]] = [
        {"params": [getattr(at.self_attn, name).weight for at in layers for name in inputs], "blocks": heads},
        {"params": [at.self_attn.o_proj.weight for at in layers], "blocks": heads, "axis": 1},
        {"params": [getattr(at.mlp, name).weight for at in layers for name in ("gate_proj", "up_proj")]},
        {"params": [at.mlp.down_proj.weight for at in layers]},
    ]
    # The weights of norms are scales of whole dimensions, the last one's a small one: they move slowly.
    scales = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    others = [{"params": [model.model.embed_tokens.weight]}, {"params": scales, "lr": adam_rate / 10}]
    return [
        Muon(groups, muon_rate),
        torch.optim.AdamW(others, adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
