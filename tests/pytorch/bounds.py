"""References in double for what torch has no function for, and bounds of the errors of gpuloss against a reference.

u is half a unit in the last place of the arithmetic: 2^-53 for doubles, else 2^-24. 16 bits are computed in float.
The kernels' own bounds, element by element, are in tests/numerics; these are coarser, and of the whole path:

  exp      a relative error of 6u (float: 2^-22 of the function and 2^-23 of a factor), and 3u times its argument
  logits   a factor, rounded, and its product: 2u |x|. A softcap: a quotient, tanh, a product: 10u |x|, since tanh(z) is
           at least z / cosh(z)^2, which is what an error of z makes
  log sum  over C classes: C additions, and log2 C levels of a tree, each with a rescaling by an exp. The logarithm
           itself: 2u of its size. The error of the logits comes whole
  lse      is stored for backward: u |lse|

A double is compared with torch's double, which has errors of the same kind: twice the bound."""

import math

import torch
import torch.nn.functional as F

EXP = 6
DISTANCE = 3
SCALING = 2
SOFTCAP = 10


def unit(dtype):
    return 2.0**-53 if dtype == torch.float64 else 2.0**-24


def references(dtype):
    """How many results have errors: ours, and a reference of the same type."""
    return 2 if dtype == torch.float64 else 1


def store(dtype, magnitude):
    """Rounding to the type: half a unit in the last place, or half the smallest subnormal number."""
    info = torch.finfo(dtype)
    return info.eps / 2 * magnitude + info.smallest_normal * info.eps


def rows_of(tensor):
    """[C] or [N, C, d1, ...] as [rows, C]."""
    if tensor.dim() == 1:
        return tensor.unsqueeze(0)
    return tensor.movedim(1, -1).reshape(-1, tensor.shape[1])


def columns_of(rows, shape):
    """The opposite of rows_of."""
    if len(shape) == 1:
        return rows.reshape(shape)
    return rows.reshape(shape[:1] + shape[2:] + shape[1:2]).movedim(-1, 1)


class LogSoftmax:
    """For logits [rows, C] in double, as computed in the arithmetic of dtype: `logs` = lse - x, and errors."""

    def __init__(self, logits, dtype, scalings=0, given=0.0):
        """scalings: u of the logits' relative error; given: what else they are off by."""
        self.u = u = unit(dtype)
        self.classes = logits.shape[-1]
        levels = math.ceil(math.log2(self.classes))
        self.distance = (logits.amax(-1) - logits.amin(-1)).unsqueeze(-1)
        self.lse = logits.logsumexp(-1, keepdim=True)
        self.logs = self.lse - logits
        self.p = logits.softmax(-1)
        logit_error = given + scalings * u * logits.abs().amax(-1, keepdim=True)
        self.lse_error = logit_error + u * (
            DISTANCE * self.distance + EXP + self.classes + levels * (EXP + 2) + 2 * math.log(self.classes)
        )
        # The stored lse, the logit, and their difference.
        self.log_error = self.lse_error + u * self.lse.abs() + logit_error + 2 * u * self.logs
        self.p_relative = self.log_error + u * (EXP + DISTANCE * (self.distance + math.log(self.classes)))


class CrossEntropy:
    """The loss of gpuloss.h, differentiable, with every option; and the bounds of what gpuloss gives for it."""

    def __init__(
        self,
        input,
        target,
        weight=None,
        ignore_index=-100,
        reduction="mean",
        label_smoothing=0.0,
        z_loss=0.0,
        softcap=0.0,
        logit_scale=1.0,
        row_weights=None,
        logit_error=0.0,
    ):
        """input, weight, row_weights: doubles. logit_error: what the logits are off by, as [rows, C] or a number."""
        self.shape, self.reduction, self.smoothing, self.z_loss = input.shape, reduction, label_smoothing, z_loss
        self.scalings = (SCALING if logit_scale != 1.0 else 0) + (SOFTCAP if softcap else 0)
        self.given = logit_error
        x = rows_of(input) * logit_scale
        self.x = x = softcap * torch.tanh(x / softcap) if softcap else x
        # The largest factor from an error of the gradient of x to an error of the logits' gradient.
        self.scale = abs(logit_scale)
        rows, classes = x.shape
        self.w = torch.ones(classes, dtype=torch.float64, device=x.device) if weight is None else weight
        self.r = (
            torch.ones(rows, dtype=torch.float64, device=x.device) if row_weights is None else row_weights.reshape(-1)
        )
        if target.is_floating_point():
            self.k = self.w * ((1 - label_smoothing) * rows_of(target) + label_smoothing / classes)
            counted, divisor = torch.ones_like(self.r), float(rows)
        else:
            y = target.reshape(-1).long()
            counted = (y != ignore_index).double()
            y = torch.where(y == ignore_index, 0, y)
            one_hot = F.one_hot(y, classes).double()
            self.k = (1 - label_smoothing) * one_hot * self.w[y, None] + label_smoothing / classes * self.w
            divisor = (self.w[y] * counted).sum()
        self.divisor = divisor if reduction == "mean" else 1.0
        self.factors = self.r * counted
        self.lse = x.logsumexp(1)
        self.losses = self.factors * ((self.k * (self.lse[:, None] - x)).sum(1) + z_loss * self.lse**2)

    def loss(self):
        if self.reduction == "none":
            return self.losses.reshape(self.shape[:1] + self.shape[2:] if len(self.shape) > 1 else ())
        return self.losses.sum() / self.divisor

    def _softmax(self, dtype):
        return LogSoftmax(self.x.detach(), dtype, self.scalings, self.given)

    def loss_bound(self, dtype):
        """sum_c k_c (lse - x_c): the error of each logarithm; C products and sums and a few factors; and z lse^2."""
        soft = self._softmax(dtype)
        k = self.k.detach().abs()
        lse = soft.lse.abs().squeeze(1)
        reach = (soft.distance + math.log(soft.classes)) * k.sum(1, keepdim=True)
        rows = (k * soft.log_error).sum(1) + (soft.classes + 8) * soft.u * reach.squeeze(1)
        rows = rows + self.z_loss * (2 * lse * soft.lse_error.squeeze(1) + 6 * soft.u * lse**2)
        rows = rows * self.factors.detach().abs()
        value = self.loss().detach().abs()
        if self.reduction == "none":
            return references(dtype) * (rows.reshape(value.shape) + 8 * soft.u * value)
        return references(dtype) * (rows.sum() / abs(self.divisor) + 8 * soft.u * value)

    def _upstream(self, grad):
        upstream = grad.double().abs().reshape(-1) / abs(self.divisor)
        return (upstream * self.factors.detach().abs())[:, None] * torch.ones_like(self.x.detach())

    def gradient_bound(self, dtype, grad):
        """s (p (K + 2 z lse) - k): the error of p, of the sum K of C, of lse; then ten factors, and the slope of a
        softcap with ten more."""
        soft = self._softmax(dtype)
        k = self.k.detach().abs()
        total = k.sum(1, keepdim=True) + 2 * self.z_loss * soft.lse.abs()
        error = soft.p * (total * (soft.p_relative + (soft.classes + 8) * soft.u) + 2 * self.z_loss * soft.lse_error)
        slope = 40 * soft.u * (1 + self.x.detach().abs()) if self.scalings >= SOFTCAP else 0
        error = error + (10 * soft.u + slope) * (soft.p * total + k)
        return references(dtype) * columns_of(self.scale * self._upstream(grad) * error, self.shape)

    def target_bound(self, dtype, grad):
        """s (1-e) w (lse - x)."""
        soft = self._softmax(dtype)
        error = (1 - self.smoothing) * self.w.abs() * (soft.log_error + 10 * soft.u * soft.logs)
        return references(dtype) * columns_of(self._upstream(grad) * error, self.shape)


class KLDiv:
    """Bounds of torch's kl_div, whose elements are independent. With log_target, t = exp(target) has a relative error.
    log t has 8u and, close to 1, 4u absolute. Each term has three more roundings."""

    def __init__(self, input, target, log_target, dtype):
        self.u = u = unit(dtype)
        self.t = target.exp() if log_target else target
        self.log_t = target.abs() if log_target else target.log().abs()
        self.reach = self.log_t + input.abs()
        self.relative = u * (EXP + DISTANCE * self.log_t if log_target else 0 * self.log_t)
        self.count, self.dtype = references(dtype), dtype

    def elements(self):
        error = self.relative * self.reach + self.u * (12 * self.reach + 4)
        return self.count * torch.where(self.t == 0, 0.0, self.t * error)

    def sums(self, divisor, value):
        return self.elements().sum() / divisor + self.count * 4 * self.u * value.abs()

    def input_gradient(self, factors):
        return self.count * factors.abs() * self.t * (self.relative + 10 * self.u)

    def target_gradient(self, factors, log_target):
        error = self.relative * (self.reach + 1) + self.u * (20 * (self.reach + 1))
        return self.count * factors.abs() * (self.t * error if log_target else error)


class Side:
    """One side of a divergence in double: p, log p, their errors."""

    def __init__(self, tensor, kind, temperature, eps, dtype):
        u = unit(dtype)
        if kind == "logits":
            z = tensor / temperature
            soft = LogSoftmax(z.detach(), dtype, SCALING)
            self.p, self.log = z.softmax(-1), z.log_softmax(-1)
            self.error = soft.log_error + soft.p_relative
        elif kind == "log_probabilities":
            self.p, self.log = tensor.exp(), tensor
            self.error = u * (EXP + (DISTANCE + 2) * tensor.detach().abs())
        else:
            self.p, self.log = tensor, (tensor + eps).log()
            self.error = u * (4 + 10 * self.log.detach().abs())


class Divergence:
    """The divergence of gpuloss.h, differentiable, of two Sides; and bounds. With M = 1 + |log t| + |log q|, no term f
    is larger than (t + q) M, and neither is q df/dq or t df/dt. None takes more than 20 roundings of that size. The
    errors of both sides enter at most twice, through p and through its logarithm."""

    def __init__(self, input, target, divergence, beta, factors, temperature, dtype):
        q, t = input, target
        self.u, self.count = unit(dtype), references(dtype)
        if divergence == "forward_kl":
            f = t.p * (t.log - q.log)
        elif divergence == "reverse_kl":
            f = q.p * (q.log - t.log)
        elif divergence == "jensen_shannon":
            m = beta * t.p + (1 - beta) * q.p
            f = beta * t.p * (t.p / m).log() + (1 - beta) * q.p * (q.p / m).log()
        else:
            f = (t.p - q.p).abs() / 2
        self.losses = factors * f.sum(-1)
        self.factors, self.temperature = factors, temperature
        self.magnitude = ((t.p + q.p) * (1 + t.log.abs() + q.log.abs())).detach()
        self.sides = input, target
        self.classes = f.shape[-1]
        self.errors = self.magnitude * (2 * (input.error + target.error) + 20 * self.u)

    def loss_bound(self):
        """Of each row: its terms' errors, and C additions."""
        total = self.errors.sum(-1) + (self.classes + 8) * self.u * self.magnitude.sum(-1)
        return self.count * self.factors.abs() * total

    def gradient_bound(self, number, kind, upstream):
        """Of side 0 or 1, with v = p df/dp: s (v - p sum v) / T of logits, s v of logarithms, s v / p of
        probabilities."""
        p = self.sides[number].p.detach()
        scale = (self.factors * upstream).abs()[..., None] / (self.temperature if kind == "logits" else 1)
        errors = self.errors + 10 * self.u * self.magnitude
        if kind == "logits":
            relative = self.sides[number].error + (self.classes + 10) * self.u
            errors = errors + p * (errors.sum(-1, keepdim=True) + relative * self.magnitude.sum(-1, keepdim=True))
        elif kind == "probabilities":
            errors = errors / p
        return self.count * scale * errors
