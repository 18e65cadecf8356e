"""A call: the fields of its desc, its arrays, its expected outputs. Fields that the losses share are drawn here."""

import numpy as np
import reference
from draw import fits
from gpu import descs
from storage import rounded

COUNTS = ("correct", "bad_targets", "bad_indices")
SUMS = ("loss", "z_loss", *COUNTS)
REDUCTIONS = ("none", "sum", "mean", "batchmean")


class Call:
    """given: what the reference reads, by field. scalars: other fields of the desc. arrays: Array by field."""

    def __init__(self, function, dtype):
        self.function = function
        self.given, self.scalars, self.arrays, self.expected = {}, {"dtype": descs.DTYPES[dtype]}, {}, {}
        self.dtype = dtype
        self.result = "float64" if dtype == "float64" else "float32"
        self.flags = 0
        self.may_have_workspace = True

    def desc(self):
        struct = descs.DESCS.get(self.function.removesuffix("_divisor"), descs.CrossEntropyDesc)
        desc = struct(flags=int(self.flags))
        for field, number in self.scalars.items():
            setattr(desc, field, number)
        return desc

    def give(self, field, number):
        """A number of the desc that the reference reads, too."""
        self.given[field] = self.scalars[field] = number

    def give_array(self, field, array, numbers):
        self.given[field], self.arrays[field] = numbers, array


def give_results(call, draw, field, numbers):
    """An input of results: one number, or a vector."""
    numbers = rounded(call.result, np.asarray(numbers))
    array = draw.vector(call.result, len(numbers), numbers) if numbers.ndim else draw.one(call.result, numbers)
    call.give_array(field, array, numbers)


def give_reduction(call, draw, of_a_divisor):
    """The reduction, and at times a divisor, which goes with the reductions named."""
    reduction = draw.choice(REDUCTIONS)
    call.given["reduction"] = reduction
    call.scalars["reduction"] = descs.Reduction[reduction.upper()]
    if reduction in of_a_divisor and draw.chance(0.4):
        divisor = float(rounded("float32", draw.uniform(0.5, 9.0)))
        if draw.chance(0.5):
            call.give("divisor", divisor)
        else:
            give_results(call, draw, "divisor_in", divisor)
            call.given["divisor"] = divisor


def give_row_weights(call, draw, rows):
    if draw.chance(0.3):
        weights = draw.normal(rows, 1.0)
        weights[draw.uniform(0, 1, rows) < 0.15] = 0.0
        give_results(call, draw, "row_weights", weights)


def give_ignore_index(call, draw, targets, type_name):
    """At times; some of the targets become that index. Returns whether it did."""
    if not draw.chance(0.5):
        return False
    index = draw.choice((-100, 0, 1, 255, -1))
    call.flags |= descs.Flags.USE_IGNORE_INDEX
    call.give("ignore_index", index)
    if fits(type_name, index):
        targets[draw.uniform(0, 1, targets.size) < draw.choice((0.3, 0.3, 1.0))] = index
    return True


def give_upstream(call, draw, rows):
    """What the gradient is multiplied by."""
    if draw.chance(0.3):
        call.flags |= descs.Flags.USE_GRAD_SCALE
        call.give("grad_scale", draw.uniform(-3.0, 3.0))
    if call.given["reduction"] != "none" and draw.chance(0.3):
        give_results(call, draw, "grad_loss", draw.uniform(0.5, 2.0))
    if draw.chance(0.3):
        give_results(call, draw, "grad_loss_rows", draw.normal(rows, 1.0))


def wanted(call, draw, outputs, at_least=()):
    """A random choice of outputs, one at least. A scalar does not go with reduction none."""
    if call.given["reduction"] == "none":
        outputs = [name for name in outputs if name not in ("loss", "z_loss")]
    chosen = [name for name in outputs if name in at_least or draw.chance(0.45)]
    return chosen or [draw.choice(outputs)]


def want_results(call, draw, names, rows):
    """Adds the outputs that have one number, or one a row."""
    for name in names:
        if name in ("loss", "z_loss"):
            call.arrays[name] = draw.one(call.result)
        elif name in COUNTS:
            call.arrays[name] = draw.one("int64")
        elif name in ("loss_rows", "z_loss_rows", "lse"):
            call.arrays[name] = draw.vector(call.result, rows)
        elif name == "argmax":
            call.arrays[name] = draw.vector("int64", rows)


def add_to_sums(call, draw):
    """At times, the outputs of one number add to what is there. The expected outputs are there already."""
    names = [name for name in SUMS if name in call.arrays]
    if not names or not draw.chance(0.3):
        return
    call.flags |= descs.Flags.ADD_SUMS
    for name in names:
        if name in COUNTS:
            type_name, number = "int64", draw.choice((0, draw.integer(-1000, 1000), (1 << 40) + draw.integer(0, 9)))
        else:
            type_name, number = call.result, draw.choice((0.0, draw.normal(None), draw.normal(None)))
        number = rounded(type_name, np.asarray(number))
        call.arrays[name] = draw.one(type_name, number)
        call.arrays[name].is_output = True
        call.expected[name] = reference.added(call.expected[name], number)


def want_gradient(call, draw, field, source, type_name, inner=0):
    """The gradient of the array `source`, at times that array itself."""
    array, stride = call.arrays[source], call.scalars[source + "_stride"]
    if array.type_name == type_name and draw.chance(0.25):
        array.is_output = True
    else:
        rows, columns = call.given[source].shape
        array, stride = draw.matrix(type_name, rows, columns, inner)
    call.arrays[field], call.scalars[field + "_stride"] = array, stride
