"""Linear layers with a frozen LoRA adapter beside their weight.

A change of a bfloat16 weight that is smaller than half of its last digit is rounded away. So an adapter over
such weights is not merged: each layer adds its adapter's output, as the training that made it did.
"""

from typing import cast

import torch
from peft import PeftModel
from peft.tuners import lora
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel


class AdaptedLinear(torch.nn.Linear):
    """A linear layer with frozen adapters in float32: its output is W x + U (D x)."""

    down: Tensor
    up: Tensor

    def __init__(self, base: torch.nn.Linear, down: Tensor, up: Tensor) -> None:
        """Take the weights of a layer, and the matrices of an adapter, the upper one already scaled.

        An adapter that the layer has already is kept.
        """
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight, self.bias = base.weight, base.bias
        if isinstance(base, AdaptedLinear):
            down, up = torch.cat([base.down, down]), torch.cat([base.up, up], dim=1)
        self.register_buffer("down", down.detach(), persistent=False)
        self.register_buffer("up", up.detach(), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Return the output of weight and adapter, in the number format of the weight's."""
        output = super().forward(input)
        change = linear(linear(input.to(self.down.dtype), self.down), self.up)
        return (output + change).to(output.dtype)

    def merged(self) -> torch.nn.Linear:
        """Return a plain layer with the adapter merged, in the number format of the weight."""
        layer = torch.nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        total = self.weight.detach().float() + self.up.float() @ self.down.float()
        layer.weight, layer.bias = torch.nn.Parameter(total.to(self.weight.dtype)), self.bias
        return layer


def freeze_adapter(adapted: PeftModel) -> PreTrainedModel:
    """Turn PEFT's layers into plain ones with a frozen adapter, and return the network.

    Layers of other kinds, and the output layer, are merged: its weight is also read without a call of it.
    """
    network = cast(PreTrainedModel, adapted.get_base_model())
    head = network.get_output_embeddings()
    (name,) = adapted.active_adapters
    for path, layer in list(network.named_modules()):
        if type(layer) is not lora.Linear or name not in layer.lora_A or layer.lora_variant:
            continue
        base, down, up = layer.get_base_layer(), layer.lora_A[name], layer.lora_B[name]
        matrices = cast(Tensor, down.weight), cast(Tensor, up.weight) * layer.scaling[name]
        if isinstance(base, torch.nn.Linear) and base is not head and not layer.lora_bias[name]:
            _replace(network, path, AdaptedLinear(base, *matrices))
    return cast(PreTrainedModel, adapted.merge_and_unload())


def merge_frozen_adapters(network: PreTrainedModel) -> None:
    """Merge the frozen adapters of a network, in place: its weights can then be saved."""
    for path, layer in list(network.named_modules()):
        if isinstance(layer, AdaptedLinear):
            _replace(network, path, layer.merged())


def _replace(network: torch.nn.Module, path: str, layer: torch.nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, layer)
