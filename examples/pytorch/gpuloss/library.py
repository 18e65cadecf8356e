"""The shared library: its data types, its errors, and one context for each GPU."""

import ctypes
import os
import pathlib
import threading
from ctypes import c_size_t, c_void_p

import torch

from . import descs
from .descs import DESC_BYTES, VERSION, CreateDesc

DTYPES = {getattr(torch, name): number for name, number in descs.DTYPES.items()}
INDEX_TYPES = {getattr(torch, name): number for name, number in descs.INDEX_TYPES.items()}


def find():
    """The path of the library: that of $GPULOSS_LIBRARY, or beside this file, or in the project's build folder."""
    given = os.environ.get("GPULOSS_LIBRARY")
    here = pathlib.Path(__file__).resolve()
    places = [given] if given else [here.with_name("libgpuloss.so"), here.parents[3] / "build" / "libgpuloss.so"]
    for place in places:
        if os.path.exists(place):
            return str(place)
    tried = ", ".join(str(place) for place in places)
    raise FileNotFoundError(f"libgpuloss.so: not found (tried {tried}): run `make shared`, or set GPULOSS_LIBRARY")


class Library:
    """libgpuloss.so, and a context for each device that it was called for. The contexts live as long as the process, or
    until close()."""

    accepts = "cuda"  # the type of device whose memory the driver can address

    def __init__(self, path=None, driver_path=None):
        """driver_path: file name of the driver library; None: the system's."""
        self.path = path or find()
        self._driver_path = driver_path
        self._lock = threading.Lock()
        self._contexts = {}
        self._library = descs.load(self.path)

    def close(self):
        """Destroys the contexts. No other thread may be in a call."""
        with self._lock:
            for context in self._contexts.values():
                self._library.gpuloss_destroy(context)
            self._contexts.clear()

    def _error(self, status):
        message = (
            f"{self._library.gpuloss_last_error().decode()} ({self._library.gpuloss_status_name(status).decode()})"
        )
        if self._library.gpuloss_group_of(status) == 1:
            return ValueError(message)
        if status == 300:
            return MemoryError(message)
        if status == 301:
            return torch.cuda.OutOfMemoryError(message)
        return RuntimeError(message)

    def _create(self, ordinal):
        """On a thread of its own, without a current CUcontext: gpuloss takes the primary one then, which torch uses."""
        context, error = c_void_p(), []
        desc = CreateDesc(device=ordinal, driver_path=self._driver_path and os.fsencode(self._driver_path))

        def create():
            status = self._library.gpuloss_create_versioned(
                ctypes.byref(context), ctypes.byref(desc), VERSION, DESC_BYTES
            )
            if status != 0:
                error.append(self._error(status))

        thread = threading.Thread(target=create)
        thread.start()
        thread.join()
        if error:
            raise error[0]
        return context

    def context(self, device):
        """The gpuloss_context of the device, which is made when it is first asked for."""
        ordinal = device.index or 0
        with self._lock:
            if ordinal not in self._contexts:
                self._contexts[ordinal] = self._create(ordinal)
            return self._contexts[ordinal]

    def check_devices(self, tensors):
        """Refuses tensors of which the library's driver can't address one, or which are not all on one device."""
        first = None
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if tensor.device.type != self.accepts:
                raise NotImplementedError(f"{name}: must be a {self.accepts} tensor (got one on {tensor.device})")
            first = first or (name, tensor.device)
            if tensor.device != first[1]:
                raise RuntimeError(
                    f"{name}: must be on the device of {first[0]}, {first[1]} (got one on {tensor.device})"
                )

    def launch(self, function, desc, inputs, outputs):
        """Calls `function` on the current stream of the tensors' device. inputs, outputs: tensors, by the name of the
        field that points to them; a None is left out. desc has the other fields."""
        self.check_devices({**inputs, **outputs})
        device = next(tensor.device for tensor in inputs.values() if tensor is not None)
        context = self.context(device)
        self._enqueue(function, context, desc, inputs, outputs, device)

    def _enqueue(self, function, context, desc, inputs, outputs, device):
        for tensors in (inputs, outputs):
            for name, tensor in tensors.items():
                if tensor is not None:
                    setattr(desc, name, tensor.data_ptr())
        stream = torch.cuda.current_stream(device)
        workspace = None
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                # The workspace is the graph's own memory, because the graph may run at the same time as calls on the
                # stream.
                workspace = self._workspace(function, context, desc, device)
        self.run(function, context, desc, stream.cuda_stream)
        del workspace

    def _workspace(self, function, context, desc, device):
        size = c_size_t()
        status = getattr(self._library, function + "_workspace")(context, ctypes.byref(desc), ctypes.byref(size))
        if status != 0:
            raise self._error(status)
        workspace = torch.empty(size.value, dtype=torch.uint8, device=device)
        desc.workspace, desc.workspace_bytes = workspace.data_ptr(), size.value
        return workspace

    def run(self, function, context, desc, stream):
        """Calls `function`, and raises its error."""
        status = getattr(self._library, function)(context, ctypes.byref(desc), stream)
        if status != 0:
            raise self._error(status)


_current = None
_current_lock = threading.Lock()


def current():
    """The library that the functions use; the first call loads it."""
    global _current
    with _current_lock:
        if _current is None:
            _current = Library()
        return _current


def use(library):
    """Has the functions use another Library. Returns the one before, or None if there was none."""
    global _current
    with _current_lock:
        before, _current = _current, library
    return before
