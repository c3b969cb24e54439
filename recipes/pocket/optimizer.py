"""Optimisers and learning rates: Muon for the matrices, AdamW for all other weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from recipes.pocket.pocket_model import decoder_layers

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
_ITERATIONS = 5
_MIN_RATE_SHARE = 0.02  # share of the first learning rate that is left at the end


class Muon(torch.optim.Optimizer):
    """SGD with momentum whose updates are orthogonalised (Jordan et al. 2024).

    Deviation from ``torch.optim.Muon``, which takes whole matrices: those of a group may be cut into
    ``blocks`` of rows (``axis`` 0) or columns (1), one for each attention head, that are orthogonalised
    separately. They are parameters of different heads, and small blocks cost an eighth. And torch's computes
    in bfloat16 everywhere, which CPUs without AVX-512 do eighty times slower than float32.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float, momentum: float = 0.95) -> None:
        """Make the optimiser; a block of ``r`` rows and ``c`` columns moves by ``lr * sqrt(max(1, r/c))``.

        Args:
            groups: matrices of one shape each: ``params``, and ``blocks`` and ``axis`` if they are cut.
            lr: the learning rate.
            momentum: decay of the average of the gradients.
        """
        super().__init__(groups, {"lr": lr, "momentum": momentum, "blocks": 1, "axis": 0})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # no closures here
        """Take a step."""
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            momenta: list[Tensor] = []
            for matrix in matrices:
                state = self.state[matrix]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                average = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                momenta.append(matrix.grad.lerp(average, group["momentum"]))  # Nesterov momentum
            stacked = torch.stack(momenta)
            stacked = stacked.mT if group["axis"] else stacked
            blocks = stacked.unflatten(1, (group["blocks"], -1)).flatten(0, 1)
            updates = orthogonalise(blocks).unflatten(0, (len(matrices), -1)).flatten(1, 2)
            scale = max(1.0, blocks.shape[1] / blocks.shape[2]) ** 0.5
            for matrix, update in zip(matrices, updates, strict=True):
                matrix.sub_(update.mT if group["axis"] else update, alpha=group["lr"] * scale)


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
    """Give the factor of the learning rates: it falls linearly to almost nothing, restarts, and falls again.

    A warm restart (Loshchilov and Hutter 2016, https://arxiv.org/abs/1608.03983), linear instead of cosine;
    the second fall begins half as high as the first.

    Args:
        share: share of the training that is done, from 0 to 1.
        restart: share at which the second fall begins; with 1 the rates fall once.
    """
    if share < restart:
        return max(_MIN_RATE_SHARE, 1 - share / restart)
    return 0.5 * max(_MIN_RATE_SHARE, (1 - share) / (1 - restart)) if restart < 1 else _MIN_RATE_SHARE


def is_bf16_fast(device: torch.device) -> bool:
    """Return True if a device multiplies bfloat16 faster than float32; many CPUs are eighty times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capabilities = getattr(torch.cpu, "get_capabilities", dict[str, Any])()  # older versions cannot tell
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_tile"))


def make_optimizers(
    model: LlamaForCausalLM, muon_rate: float, adam_rate: float
) -> list[torch.optim.Optimizer]:
    """Make the optimisers of a network: Muon for the matrices of its layers, AdamW for the rest."""
    layers, heads = decoder_layers(model), model.config.num_attention_heads
    inputs = ("q_proj", "k_proj", "v_proj")
    groups: list[dict[str, Any]] = [
        {"params": [getattr(at.self_attn, name).weight for at in layers for name in inputs], "blocks": heads},
        {"params": [at.self_attn.o_proj.weight for at in layers], "blocks": heads, "axis": 1},
        {"params": [getattr(at.mlp, name).weight for at in layers for name in ("gate_proj", "up_proj")]},
        {"params": [at.mlp.down_proj.weight for at in layers]},
    ]
    # The weights of norms scale whole dimensions, and the last norm's are small: they learn slowly.
    scales = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    others = [{"params": [model.model.embed_tokens.weight]}, {"params": scales, "lr": adam_rate / 10}]
    return [
        Muon(groups, muon_rate),
        torch.optim.AdamW(others, adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
