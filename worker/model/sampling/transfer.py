"""Arrays to where logits are, and results back to the host.

On a CPU both are the same memory. Copies to and from a GPU are started from pinned memory and waited for by nobody but
`Fetched.wait`: PyTorch keeps the pinned buffers, and gives one out again when the copies it was in are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def place(values: npt.NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`dtype` None: that of the array."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return host.to(device, dtype)
    return host.pin_memory().to(device, non_blocking=True).to(dtype or host.dtype)


class Fetched:
    """Tensors of one device on their way to the host."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if tensors and tensors[0].device.type == "cuda":
            self._hosts = [_host_copy(tensor) for tensor in tensors]
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._hosts = [tensor.cpu() for tensor in tensors]

    def wait(self) -> list[npt.NDArray[Any]]:
        """Waits once for all of them."""
        if self._event is not None:
            self._event.synchronize()
        return [host.numpy() for host in self._hosts]


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
