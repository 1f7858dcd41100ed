"""A step's small arrays on their way to the device: packed into one pinned buffer, sent by one copy.

    begin, put, put, .. put_last, send      each array lies behind the one before, on both sides

Arrays of the same sizes put in the same order lie at the same places, which is where a recorded graph reads them; the
last one may be of any size. A buffer is written again only when its last copy has left it, so a step may be put
together while the one before it runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16  # int32 values: kernels are compiled for pointers that are multiples of 16 bytes


class StepInputs:
    """Room for `capacity` int32 values. Two host buffers in turn, one on the device: work there is in order."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._hosts = [torch.zeros(capacity, dtype=torch.int32, pin_memory=self._is_cuda) for _ in range(2)]
        self._arrays = [host.numpy() for host in self._hosts]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._device = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._turn = self._size = 0

    def begin(self) -> None:
        self._turn = 1 - self._turn
        self._size = 0
        sent = self._sent[self._turn]
        if sent is not None:
            sent.synchronize()

    def put(self, values: npt.NDArray[np.integer]) -> torch.Tensor:
        """The values on the device, int32, once they are sent. Valid until the next step's are."""
        start, stop = self._size, self._size + values.size
        assert stop <= len(self._device), "a step larger than the limits that the runner was built for"
        self._arrays[self._turn][start:stop] = values.reshape(-1)
        self._size = -(-stop // _ALIGNMENT) * _ALIGNMENT
        return self._device[start:stop].view(values.shape)

    def put_last(self, values: npt.NDArray[np.integer]) -> torch.Tensor:
        """As `put`, but what is returned goes on to the end of the buffer, whatever lies there."""
        start = self._size
        self.put(values)
        return self._device[start:]

    def send(self) -> None:
        size = min(self._size, len(self._device))
        self._device[:size].copy_(self._hosts[self._turn][:size], non_blocking=True)
        if self._is_cuda:
            event = self._sent[self._turn] or torch.cuda.Event()
            event.record()
            self._sent[self._turn] = event
