"""Stands in for vLLM's module ``pynccl``: weights go through the group's TCP store instead of NCCL.

What the trainer makes of rewards is written down in the file that ``ARBOR_ADVANTAGES`` names.
"""

import json
import os
import sys
from pathlib import Path

import torch


class PyNcclCommunicator:
    """Sends tensors to every member of the group, one after the other."""

    def __init__(self, group: object, device: object) -> None:
        self.group = group
        _write_down_advantages()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        is_sender = self.group.rank == src
        sent = self.group.broadcast_obj(tensor.detach().cpu().clone() if is_sender else None, src)
        if not is_sender:
            tensor.copy_(sent)


def _write_down_advantages() -> None:
    """Note what Arbor's trainer computes, if this is its process."""
    trainer = getattr(sys.modules["__main__"], "ArborGRPOTrainer", None)
    place = os.environ.get("ARBOR_ADVANTAGES")
    if trainer is None or place is None:
        return
    compute = trainer._compute_advantages

    def noted(self: object, rewards: torch.Tensor) -> torch.Tensor:
        advantages = compute(self, rewards)
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps(advantages.tolist()) + "\n")
        return advantages

    trainer._compute_advantages = noted
