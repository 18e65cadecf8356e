"""Device memory and calls of libgpuloss.so, without PyTorch."""

import importlib.util
import os
import pathlib
from ctypes import byref, c_size_t, c_void_p

import numpy as np
from storage import STORED, item_bytes, to_numbers, to_stored

DESCS_FILE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch" / "gpuloss" / "descs.py"


def _descs():
    """By its path: the package imports PyTorch."""
    spec = importlib.util.spec_from_file_location("descs", DESCS_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


descs = _descs()

DIVISOR = "divisor"  # the array at an argument, not at a field
# Without guards a tool that watches memory sees accesses just outside an array.
GUARD_BYTES = int(os.environ.get("GUARD_BYTES", "64"))
# A large number in every type: one that is read, or is left where an output belongs, is seen.
FILL_BYTE = 0x7B


class Refused(Exception):
    """The message of a call that failed."""


class Gpu:
    def __init__(self, path, driver_path):
        self._library = descs.load(path)
        self._context = c_void_p()
        desc = descs.CreateDesc(driver_path=driver_path and driver_path.encode())
        self._check(
            self._library.gpuloss_create_versioned(byref(self._context), byref(desc), descs.VERSION, descs.DESC_BYTES)
        )

    def close(self):
        self._library.gpuloss_destroy(self._context)

    def _check(self, status):
        if status != 0:
            raise Refused(self._library.gpuloss_last_error().decode())

    def call(self, function, desc, arrays, has_workspace):
        """arrays: Array by field of desc. They are copied to the device and back; an Array of two fields is one array
        there. A workspace, of the size that the call needs, becomes one of them."""
        buffers = {}
        try:
            for field, array in arrays.items():
                self._point(desc, field, array, buffers)
            if has_workspace:
                arrays["workspace"] = self._workspace(function, desc)
                self._point(desc, "workspace", arrays["workspace"], buffers)
            arguments = [byref(desc)]
            if DIVISOR in arrays:
                arguments.append(c_void_p(self._address(arrays[DIVISOR], buffers)))
            self._check(getattr(self._library, function)(self._context, *arguments, None))
            for array, buffer in buffers.values():
                array.after = np.empty_like(array.image)
                count = array.image.nbytes
                self._check(self._library.gpuloss_download(self._context, array.after.ctypes.data, buffer, count, None))
        finally:
            for _, buffer in buffers.values():
                self._check(self._library.gpuloss_free(self._context, buffer))

    def _point(self, desc, field, array, buffers):
        address = self._address(array, buffers)
        if field != DIVISOR:
            setattr(desc, field, address)

    def _address(self, array, buffers):
        if id(array) not in buffers:
            buffers[id(array)] = array, c_void_p()
            self._upload(*buffers[id(array)])
        return buffers[id(array)][1].value + array.base_bytes

    def _workspace(self, function, desc):
        size = c_size_t()
        loss = function.removesuffix("_combine").removesuffix("_divisor")
        of_loss = getattr(self._library, loss + "_workspace")
        self._check(of_loss(self._context, byref(desc), byref(size)))
        desc.workspace_bytes = size.value
        return Array("uint8", np.arange(size.value), 0)

    def _upload(self, array, buffer):
        count = array.image.nbytes
        self._check(self._library.gpuloss_alloc(self._context, byref(buffer), count))
        self._check(self._library.gpuloss_upload(self._context, buffer, array.image.ctypes.data, count, None))


class Array:
    """Elements of a type at positions `at`, counted from the base, between guards. numbers: None for an output."""

    def __init__(self, type_name, at, misaligned_by, numbers=None):
        size = item_bytes(type_name)
        self.type_name = type_name
        base = GUARD_BYTES // size + misaligned_by
        count = max(1, base + (int(at.max()) + 1 if at.size > 0 else 0) + GUARD_BYTES // size)
        self.image = np.frombuffer(bytearray([FILL_BYTE]) * (count * size), dtype=STORED[type_name])
        self.base_bytes = base * size
        self._positions = base + at
        self.after = None
        self.is_output = numbers is None
        if numbers is not None:
            self.image[self._positions] = to_stored(type_name, numbers)

    def numbers(self):
        """As the call left them."""
        return to_numbers(self.type_name, self.after[self._positions])

    def changed_outside(self):
        """The first position, counted from the base, that the call may not write and has written, or None."""
        same = self.after.view(np.uint8) == self.image.view(np.uint8)
        same = same.reshape(self.image.size, -1).all(axis=1)
        if self.is_output:
            same[self._positions.ravel()] = True
        return None if same.all() else int(np.argmin(same)) - self.base_bytes // self.image.itemsize


def desc_text(desc):
    """The fields that are not zero, one a line."""
    names = {"dtype", "grad_dtype", "target_dtype", "value_dtype"}
    types = {number: name for name, number in descs.DTYPES.items()}
    lines = []
    for field, kind in desc._fields_:
        value = getattr(desc, field)
        if value:
            shown = types[value] if field in names else hex(value) if kind is c_void_p else value
            lines.append(f"    {field} = {shown}")
    return "\n".join(lines)
