"""Random choices, numbers and arrays."""

import numpy as np
from gpu import Array
from storage import FLOATS, INDICES, item_bytes, rounded

SPREAD = 3.0


class Draw:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def chance(self, probability):
        return bool(self.random.random() < probability)

    def choice(self, things):
        return things[self.random.integers(len(things))]

    def integer(self, low, high):
        return int(self.random.integers(low, high + 1))

    def size(self, most):
        """From 1 to most, each power of two as often as the next."""
        return min(most, int(2 ** self.random.uniform(0, np.log2(most + 1))))

    def normal(self, shape, spread=SPREAD):
        return self.random.normal(0.0, spread, shape)

    def uniform(self, low, high, shape=None):
        return self.random.uniform(low, high, shape)

    def floats(self):
        """The name of a type; float more often."""
        return self.choice(FLOATS + ("float32",))

    def shape(self):
        """rows, classes, inner. Long rows are few: the interpreter takes a microsecond for a few instructions."""
        classes = self.size(3000) if self.chance(0.1) else self.size(130)
        inner = self.size(12) if self.chance(0.3) else 0
        images = 0 if self.chance(0.03) else self.size(max(1, min(40, 2500 // classes) // max(inner, 1)))
        return images * max(inner, 1), classes, inner

    def numbers(self, shape, type_name):
        """Logits of a type."""
        spread = self.choice((SPREAD, SPREAD, SPREAD, 0.01, 25.0))
        numbers = self.normal(shape, spread)
        if self.chance(0.2):
            numbers += self.choice((-1.0, 1.0)) * self.choice((40.0, 1000.0))
        if self.chance(0.15):
            numbers = np.round(numbers)  # equal ones
        return rounded(type_name, numbers)

    def array(self, type_name, at, numbers=None):
        """At any alignment that its elements may have."""
        misaligned_by = self.integer(1, 15) if self.chance(0.3) else 0
        return Array(type_name, at, misaligned_by, numbers)

    def vector(self, type_name, count, numbers=None):
        return self.array(type_name, np.arange(count), numbers)

    def one(self, type_name, number=None):
        return self.array(type_name, np.int64(0), number)

    def matrix(self, type_name, rows, columns, inner=0, numbers=None):
        """An Array [rows, columns], as the header lays it out for `inner`, and the field of its stride."""
        width = max(inner, 1)
        packed = columns * width
        stride = self.choice((0, 0, packed, packed + self.integer(1, 9)))
        at = _positions(rows, columns, width, stride or packed)
        return self.array(type_name, at, numbers), stride

    def indices(self, most):
        """The name of an index type that holds numbers up to most."""
        return self.choice([name for name in INDICES if most < 2 ** (8 * item_bytes(name) - (name != "uint8"))])


def _positions(rows, columns, width, stride):
    row = np.arange(rows)
    return (row // width * stride + row % width)[:, None] + np.arange(columns)[None, :] * width


def fits(type_name, number):
    info = np.iinfo(type_name)
    return info.min <= number <= info.max
