"""Where the tests run: on CUDA tensors where torch has a GPU, else on CPU tensors and the PTX interpreter."""

import ctypes
import os
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, os.environ.get("GPULOSS_PYTORCH", str(ROOT / "examples" / "pytorch")))
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build"))
INTERPRETER = BUILD / "interpreter" / "libcuda.so.1"

import gpuloss  # noqa: E402
from gpuloss import library  # noqa: E402

ALIGNMENT_BYTES = 64


class Interpreted(gpuloss.Library):
    """A Library for CPU tensors. The interpreter has a memory of its own: each call has its arrays copied there and
    back, to addresses of the same alignment. Outputs go there filled with bytes of 255, which are NaN: a call that
    reads them, or leaves one unwritten, gives NaN."""

    accepts = "cpu"

    def __init__(self):
        super().__init__(path=str(BUILD / "libgpuloss.so"), driver_path=str(INTERPRETER))
        self.calls = []  # the fields that were given, for each call

    def _enqueue(self, function, context, desc, inputs, outputs, device):
        given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        wanted = {name: tensor for name, tensor in outputs.items() if tensor is not None}
        self.calls.append((function, {name: tuple(tensor.shape) for name, tensor in {**given, **wanted}.items()}))
        copies = {}
        try:
            for name, tensor in {**given, **wanted}.items():
                self._place(context, copies, tensor, name in given)
                setattr(desc, name, copies[tensor.data_ptr()][1] if tensor.numel() > 0 else None)
            self.run(function, context, desc, None)
            for tensor in wanted.values():
                if tensor.numel() > 0:
                    address, count = copies[tensor.data_ptr()][1], _span_bytes(tensor)
                    self._checked(self._library.gpuloss_download(context, tensor.data_ptr(), address, count, None))
        finally:
            for allocation, _ in copies.values():
                self._checked(self._library.gpuloss_free(context, allocation))

    def _place(self, context, copies, tensor, is_input):
        start, count = tensor.data_ptr(), _span_bytes(tensor)
        if start in copies or count == 0:
            return
        allocation = ctypes.c_void_p()
        self._checked(self._library.gpuloss_alloc(context, ctypes.byref(allocation), count + ALIGNMENT_BYTES))
        address = allocation.value + start % ALIGNMENT_BYTES
        copies[start] = allocation, address
        unwritten = bytes([255]) * (0 if is_input else count)
        source = ctypes.c_void_p(start) if is_input else ctypes.c_char_p(unwritten)
        self._checked(self._library.gpuloss_upload(context, address, source, count, None))

    def _checked(self, status):
        if status != 0:
            raise self._error(status)


def _span_bytes(tensor):
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    torch.set_num_threads(1)
    library.use(Interpreted())
