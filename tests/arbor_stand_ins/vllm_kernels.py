"""Stands in for the compiled module of vLLM, ``vllm._C``: it was built for an older torch and does not load.

Models look this kernel up and never call it: vLLM lets PyTorch compute where it would compile a model.
"""

import torch

torch.library.define("_C::silu_and_mul", "(Tensor(a!) out, Tensor input) -> ()")
