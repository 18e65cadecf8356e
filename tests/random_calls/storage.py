"""Numbers as the elements of device arrays. numpy has no bfloat16: its bits are stored as uint16."""

import numpy as np

STORED = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "uint8": np.uint8,
}
INDICES = ("int64", "int32", "int16", "uint8")
FLOATS = ("float32", "float64", "float16", "bfloat16")


def item_bytes(type_name):
    return np.dtype(STORED[type_name]).itemsize


def to_stored(type_name, numbers):
    """Rounded to nearest, ties to even."""
    with np.errstate(over="ignore"):
        if type_name != "bfloat16":
            return np.asarray(numbers).astype(STORED[type_name])
        bits = np.asarray(numbers).astype(np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, nearest).astype(np.uint16)


def to_numbers(type_name, stored):
    """Floats as doubles, indices as int64."""
    if type_name == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.int64 if type_name in INDICES else np.float64)


def rounded(type_name, numbers):
    """As they are after storing them."""
    return to_numbers(type_name, to_stored(type_name, numbers))
