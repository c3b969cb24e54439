"""Linear layers that a processor multiplies by oneDNN where that is faster than by torch's default.

By default torch multiplies float32 with MKL, which on processors of other makers than its own leaves half of
the width of their registers unused (AVX2 where they have AVX-512). On its own it is up to a tenth faster.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MIN_ROWS = 8
"""Of an input for oneDNN: for fewer its start costs more than it gains (measured 256 to 2,468 wide)."""


class OneDnnLinear(nn.Linear):
    """A linear layer whose weights are those of another: what is trained in the one is in the other."""

    def __init__(self, layer: nn.Linear) -> None:
        """Take over the weight, and the bias if there is one."""
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        """Multiply as ``nn.Linear`` does; oneDNN has no gradient here, so training does not use it."""
        if torch.is_grad_enabled() or input.numel() < _MIN_ROWS * self.in_features or not self._suits(input):
            return F.linear(input, self.weight, self.bias)
        # not public, and therefore of the one release of torch that this project names
        return torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")

    def _suits(self, input: Tensor) -> bool:
        kinds = {(tensor.device.type, tensor.dtype) for tensor in (input, self.weight)}
        return kinds == {("cpu", torch.float32)} and not torch.is_autocast_enabled("cpu")


def onednn_is_faster() -> bool:
    """Tell whether this processor is one that MKL does not use to its full width."""
    processor = torch.cpu.get_capabilities()
    is_wide = bool(processor.get("avx512_f")) and not str(processor.get("cpu_name")).startswith("Intel")
    return is_wide and torch.backends.mkldnn.is_available()


def use_onednn(network: nn.Module) -> None:
    """Exchange the linear layers of a network, which keeps its weights."""
    for name, module in list(network.named_modules()):
        if type(module) is nn.Linear:  # a subclass may compute something else
            network.set_submodule(name, OneDnnLinear(module))
