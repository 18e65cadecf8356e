"""Arrays of numbers in double, each with a bound of the error that the kernels' arithmetic may have in its place.

u is half a unit in the last place of 1 in the kernels' arithmetic: 2^-53 for doubles, else 2^-24. An operation adds the
error of its own result to the errors of its operands, to first order:

  + - *      one rounding: u |result|
  /          2 units in the last place of an approximate quotient: 4u |result|
  exp        2^-22 of the function and 2^-23 of its factor log2(e): 6u. Its product with the argument: 2u |argument|.
             Exponentials below 2^-126 count as 0
  log        2^-22 of the function, relative or absolute (where it is close to 0): 4u, and the same again for its factor
  tanh       10u of its result: a quotient of two exponentials. An error of its argument shrinks by 1 - tanh^2
  sum        n terms in any order have n - 1 roundings, of partial sums that are at most the sum of the magnitudes

The numbers themselves are computed in double: their own roundings add 2^-53 to u, which doubles it for doubles. The
bound holds for every order of the additions. An infinite bound means: any number."""

import numpy as np

LEAST = 2.0**-126


class Arithmetic:
    """Of float or double: makes the Bounded numbers of a call."""

    def __init__(self, is_double):
        self.u = 2.0**-52 if is_double else 2.0**-24 + 2.0**-53
        self.is_double = is_double

    def exact(self, values):
        values = np.asarray(values, dtype=np.float64)
        return Bounded(values, np.zeros(values.shape), self.u)

    def rounded(self, values):
        """Numbers that the kernels have rounded to their arithmetic's type."""
        values = np.asarray(values, dtype=np.float64)
        return Bounded(values, self.u * np.abs(values), self.u)

    def read(self, values, type_name):
        """Elements of an array: a double is rounded where the arithmetic is that of float."""
        return self.rounded(values) if type_name == "float64" and not self.is_double else self.exact(values)


class Bounded:
    def __init__(self, value, error, u):
        self.value, self.error, self.u = value, error, u

    def _result(self, value, error, roundings):
        return Bounded(value, error + roundings * self.u * np.abs(value), self.u)

    def _bounded(self, other):
        return other if isinstance(other, Bounded) else Bounded(np.asarray(other, dtype=np.float64), 0.0, self.u)

    def __neg__(self):
        return Bounded(-self.value, self.error, self.u)

    def __add__(self, other):
        other = self._bounded(other)
        return self._result(self.value + other.value, self.error + other.error, 1)

    def __sub__(self, other):
        return self + -self._bounded(other)

    def __mul__(self, other):
        other = self._bounded(other)
        error = np.abs(self.value) * other.error + (np.abs(other.value) + other.error) * self.error
        return self._result(self.value * other.value, error, 1)

    def __truediv__(self, other):
        other = self._bounded(other)
        value = self.value / other.value
        least = np.maximum(np.abs(other.value) - other.error, 0.0)
        error = (self.error + np.abs(value) * other.error) / least
        return self._result(value, error, 4).where(np.isposinf(self.error), 0.0, np.inf)

    def exp(self):
        value = np.exp(self.value)
        relative = np.expm1(self.error) + (6 + 2 * np.where(np.isfinite(self.value), np.abs(self.value), 0.0)) * self.u
        return Bounded(value, value * relative + LEAST, self.u)

    def log(self):
        """Of positive numbers. Where the error reaches 0, the logarithm may be any number."""
        value = np.log(self.value)
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.where(self.error < self.value, -np.log1p(-self.error / self.value), np.inf)
        return Bounded(value, shift + 8 * self.u * (1 + np.abs(value)), self.u)

    def tanh(self):
        value = np.tanh(self.value)
        return self._result(value, self.error * (1 - value * value), 10)

    def sum(self, axis=None, keepdims=False):
        count = self.value.size if axis is None else self.value.shape[axis]
        magnitude = np.abs(self.value).sum(axis=axis, keepdims=keepdims)
        error = np.sum(self.error, axis=axis, keepdims=keepdims) + max(count - 1, 0) * self.u * magnitude
        return Bounded(self.value.sum(axis=axis, keepdims=keepdims), error, self.u)

    def exact_sum(self):
        """Of rows: added exactly, or as doubles, and rounded once."""
        return self._result(self.value.sum(), np.sum(self.error), 1)

    def where(self, condition, value, error=0.0):
        """With the value, which has that error, where the condition holds."""
        return Bounded(np.where(condition, value, self.value), np.where(condition, error, self.error), self.u)

    def or_other(self, condition, other):
        """With the other number where the condition holds."""
        return self.where(condition, other.value, other.error)

    def take(self, rows, columns):
        return Bounded(self.value[rows, columns], self.error[rows, columns], self.u)
