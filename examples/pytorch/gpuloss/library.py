"""The shared library: its enums and descs for ctypes, its errors, and one context for each GPU."""

import ctypes
import enum
import os
import pathlib
import threading
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_void_p

import torch

VERSION = 0 * 10000 + 1 * 100 + 0

DTYPES = {torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.bfloat16: 4}
INDEX_TYPES = {torch.int64: 1, torch.int32: 2, torch.int16: 3, torch.uint8: 4}


class Reduction(enum.IntEnum):
    NONE = 1
    SUM = 2
    MEAN = 3
    BATCHMEAN = 4


class Flags(enum.IntFlag):
    USE_IGNORE_INDEX = 1
    PYTORCH_ZEROS = 4
    TEMPERATURE_SQUARED = 8
    SHARED_TARGET = 16


class Kind(enum.IntEnum):
    PROBABILITIES = 1
    LOG_PROBABILITIES = 2
    LOGITS = 3


class Divergence(enum.IntEnum):
    FORWARD_KL = 0
    REVERSE_KL = 1
    JENSEN_SHANNON = 2
    TOTAL_VARIATION = 3


class Residual(enum.IntEnum):
    DROP = 1
    RENORMALIZE = 2
    BUCKET = 3


def named(enumeration, field, value):
    """The member of that name in lower case."""
    try:
        return enumeration[value.upper()]
    except (KeyError, AttributeError):
        names = ", ".join(member.name.lower() for member in enumeration)
        raise ValueError(f"{field}: is one of {names} (got {value!r})") from None


class CreateDesc(Structure):
    _fields_ = [
        ("cuda_context", c_void_p),
        ("device", c_int),
        ("driver_path", c_char_p),
        ("symbol", c_void_p),
        ("symbol_user", c_void_p),
        ("flags", c_uint),
    ]


class CrossEntropyDesc(Structure):
    _fields_ = [
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("targets", c_void_p),
        ("target_probabilities", c_void_p),
        ("target_probabilities_stride", c_int64),
        ("rows", c_int64),
        ("classes", c_int64),
        ("inner", c_int64),
        ("dtype", c_int),
        ("grad_dtype", c_int),
        ("target_dtype", c_int),
        ("target_type", c_int),
        ("reduction", c_int),
        ("flags", c_uint),
        ("ignore_index", c_int64),
        ("class_weights", c_void_p),
        ("row_weights", c_void_p),
        ("label_smoothing", c_double),
        ("lse_square_scale", c_double),
        ("logit_scale", c_double),
        ("softcap", c_double),
        ("divisor", c_double),
        ("divisor_in", c_void_p),
        ("loss", c_void_p),
        ("loss_rows", c_void_p),
        ("z_loss", c_void_p),
        ("z_loss_rows", c_void_p),
        ("lse", c_void_p),
        ("argmax", c_void_p),
        ("correct", c_void_p),
        ("bad_targets", c_void_p),
        ("grad_logits", c_void_p),
        ("grad_logits_stride", c_int64),
        ("grad_target_probabilities", c_void_p),
        ("grad_target_probabilities_stride", c_int64),
        ("grad_scale", c_double),
        ("grad_loss", c_void_p),
        ("grad_loss_rows", c_void_p),
        ("lse_in", c_void_p),
        ("total_classes", c_int64),
        ("class_offset", c_int64),
        ("shard_rows", c_void_p),
        ("shards", c_int64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
    ]


class KLDivDesc(Structure):
    _fields_ = [
        ("input", c_void_p),
        ("input_stride", c_int64),
        ("target", c_void_p),
        ("target_stride", c_int64),
        ("rows", c_int64),
        ("classes", c_int64),
        ("inner", c_int64),
        ("dtype", c_int),
        ("target_dtype", c_int),
        ("input_kind", c_int),
        ("target_kind", c_int),
        ("divergence", c_int),
        ("reduction", c_int),
        ("flags", c_uint),
        ("beta", c_double),
        ("temperature", c_double),
        ("eps", c_double),
        ("row_weights", c_void_p),
        ("labels", c_void_p),
        ("label_type", c_int),
        ("ignore_index", c_int64),
        ("divisor", c_double),
        ("divisor_in", c_void_p),
        ("loss", c_void_p),
        ("loss_rows", c_void_p),
        ("loss_elements", c_void_p),
        ("loss_elements_stride", c_int64),
        ("grad_input", c_void_p),
        ("grad_input_stride", c_int64),
        ("grad_target", c_void_p),
        ("grad_target_stride", c_int64),
        ("grad_scale", c_double),
        ("grad_loss", c_void_p),
        ("grad_loss_rows", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
    ]


class KLDivSparseDesc(Structure):
    _fields_ = [
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("indices", c_void_p),
        ("indices_stride", c_int64),
        ("values", c_void_p),
        ("values_stride", c_int64),
        ("rows", c_int64),
        ("classes", c_int64),
        ("k", c_int64),
        ("dtype", c_int),
        ("value_dtype", c_int),
        ("index_type", c_int),
        ("value_kind", c_int),
        ("residual", c_int),
        ("divergence", c_int),
        ("reduction", c_int),
        ("flags", c_uint),
        ("beta", c_double),
        ("temperature", c_double),
        ("row_weights", c_void_p),
        ("labels", c_void_p),
        ("label_type", c_int),
        ("ignore_index", c_int64),
        ("divisor", c_double),
        ("divisor_in", c_void_p),
        ("loss", c_void_p),
        ("loss_rows", c_void_p),
        ("grad_logits", c_void_p),
        ("grad_logits_stride", c_int64),
        ("bad_indices", c_void_p),
        ("grad_scale", c_double),
        ("grad_loss", c_void_p),
        ("grad_loss_rows", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
    ]


DESCS = {
    "gpuloss_cross_entropy": CrossEntropyDesc,
    "gpuloss_kl_div": KLDivDesc,
    "gpuloss_kl_div_sparse": KLDivSparseDesc,
}
DESC_BYTES = ctypes.sizeof(CreateDesc) + sum(ctypes.sizeof(desc) for desc in DESCS.values())


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
        self._library = library = ctypes.CDLL(self.path)
        library.gpuloss_create_versioned.argtypes = [POINTER(c_void_p), POINTER(CreateDesc), c_uint, c_size_t]
        library.gpuloss_destroy.argtypes = [c_void_p]
        library.gpuloss_destroy.restype = None
        library.gpuloss_last_error.restype = c_char_p
        library.gpuloss_status_name.restype = c_char_p
        for name, desc in DESCS.items():
            getattr(library, name).argtypes = [c_void_p, POINTER(desc), c_void_p]
            getattr(library, name + "_workspace").argtypes = [c_void_p, POINTER(desc), POINTER(c_size_t)]

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
                # Of the graph's own memory: it may run at the same time as calls on the stream.
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
