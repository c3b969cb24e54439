"""Keys and values of the running sequences, in one rectangle that is padded to the longest sequence."""

import torch
from torch import Tensor


class KVCache:
    """One row of keys and values for each running sequence, in the order of the decoder's slots.

    The keys of a head lie by column, since a processor multiplies one query with columns up to twice as fast
    as with rows. Attributes:
        lengths: the number of tokens in each row; the columns behind them are padding.
        keys_LNHDT: layers, rows, heads, width of a head, tokens; more of both than are in use.
        values_LNHTD: the same with tokens before the width.
    """

    def __init__(self, kv_shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Reserve no memory yet; ``kv_shape`` is layers, heads and the width of a head."""
        layers, heads, width = kv_shape
        self.lengths: list[int] = []
        self.keys_LNHDT = torch.zeros(layers, 0, heads, width, 0, dtype=dtype, device=device)
        self.values_LNHTD = torch.zeros(layers, 0, heads, 0, width, dtype=dtype, device=device)

    def add(self, keys_LHTD: Tensor, values_LHTD: Tensor) -> None:
        """Copy a sequence to a new last row."""
        slot, tokens = len(self.lengths), keys_LHTD.shape[-2]
        self.reserve(slot + 1, tokens + 1)
        self.keys_LNHDT[:, slot, :, :, :tokens] = keys_LHTD.mT
        self.values_LNHTD[:, slot, :, :tokens] = values_LHTD
        self.lengths.append(tokens)

    def remove(self, slot: int) -> None:
        """Free a row; the last row moves there."""
        last, tokens = len(self.lengths) - 1, self.lengths.pop()
        if slot < last:
            self.lengths[slot] = tokens
            self.keys_LNHDT[:, slot, :, :, :tokens] = self.keys_LNHDT[:, last, :, :, :tokens]
            self.values_LNHTD[:, slot, :, :tokens] = self.values_LNHTD[:, last, :, :tokens]

    def reserve(self, rows: int, columns: int) -> None:
        """Enlarge the memory, if necessary, to at least this many rows and columns."""
        layers, old_rows, heads, old_columns, width = self.values_LNHTD.shape
        if rows > old_rows or columns > old_columns:
            rows = max(1 << (rows - 1).bit_length(), old_rows)
            columns = max(1 << (columns - 1).bit_length(), old_columns)
            # Zeros: padding has weight 0, but 0 times an uninitialised NaN would be NaN. One after the other,
            # so that only one of them is there twice.
            keys_LNHDT = self.keys_LNHDT.new_zeros(layers, rows, heads, width, columns)
            keys_LNHDT[:, :old_rows, ..., :old_columns] = self.keys_LNHDT
            self.keys_LNHDT = keys_LNHDT
            values_LNHTD = self.values_LNHTD.new_zeros(layers, rows, heads, columns, width)
            values_LNHTD[:, :old_rows, :, :old_columns] = self.values_LNHTD
            self.values_LNHTD = values_LNHTD

    def clear(self) -> None:
        """Remove all rows and release their memory."""
        self.lengths.clear()
        self.keys_LNHDT = self.keys_LNHDT[:, :0, ..., :0].clone()
        self.values_LNHTD = self.values_LNHTD[:, :0, :, :0].clone()
