"""The enums, descs and functions of gpuloss.h, for ctypes. It needs no PyTorch."""

import ctypes
import enum
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_void_p

VERSION = 0 * 10000 + 1 * 100 + 0

DTYPES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4}
INDEX_TYPES = {"int64": 1, "int32": 2, "int16": 3, "uint8": 4}


class Reduction(enum.IntEnum):
    NONE = 1
    SUM = 2
    MEAN = 3
    BATCHMEAN = 4


class Flags(enum.IntFlag):
    USE_IGNORE_INDEX = 1
    USE_GRAD_SCALE = 2
    PYTORCH_ZEROS = 4
    TEMPERATURE_SQUARED = 8
    SHARED_TARGET = 16
    ADD_SUMS = 32


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


def load(path):
    """libgpuloss.so of that path, whose functions have their types."""
    library = ctypes.CDLL(path)
    library.gpuloss_create_versioned.argtypes = [POINTER(c_void_p), POINTER(CreateDesc), c_uint, c_size_t]
    library.gpuloss_destroy.argtypes = [c_void_p]
    library.gpuloss_destroy.restype = None
    library.gpuloss_last_error.restype = c_char_p
    library.gpuloss_status_name.restype = c_char_p
    for name, desc in DESCS.items():
        getattr(library, name).argtypes = [c_void_p, POINTER(desc), c_void_p]
        getattr(library, name + "_workspace").argtypes = [c_void_p, POINTER(desc), POINTER(c_size_t)]
    library.gpuloss_cross_entropy_combine.argtypes = library.gpuloss_cross_entropy.argtypes
    library.gpuloss_alloc.argtypes = [c_void_p, POINTER(c_void_p), c_size_t]
    library.gpuloss_free.argtypes = [c_void_p, c_void_p]
    for name in ("gpuloss_upload", "gpuloss_download"):
        getattr(library, name).argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
    return library
