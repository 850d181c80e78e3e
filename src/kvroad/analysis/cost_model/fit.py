"""The fit of ``time = t0 + a · descriptors + bytes / b``: robust, not negative, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

__all__ = ["PARAMETERS", "Fit", "Launches", "Values", "fit_cost", "terms"]

Values = npt.NDArray[np.float64]

PARAMETERS = ("t0", "per_descriptor", "per_byte")
# Below this share of the largest singular value of the scaled terms one of them is made up of
# the others to within a percent, which is less than launches vary by.
_RANK_SHARE = 0.01
# A parameter takes part in what cannot be told apart if its weight there is above this.
_PART = 0.1
# Residuals beyond this many robust standard deviations count less and less (soft L1).
_SOFT = 2.0
_LEAST_SCALE = 1e-3
_NORMAL = 1.4826
_ROUNDS = 50


@dataclass(frozen=True)
class Launches:
    """Launch values to fit; one entry per launch.

    ``descriptors`` and ``n_bytes`` of a pull, ``times_us`` of it. Launches with equal
    descriptors and bytes are one *point*.
    """

    descriptors: Values
    n_bytes: Values
    times_us: Values

    @property
    def points(self) -> npt.NDArray[np.intp]:
        """The number of the point that each launch belongs to."""
        pairs = np.stack([self.descriptors, self.n_bytes], axis=1)
        return np.unique(pairs, axis=0, return_inverse=True)[1].ravel()

    def only(self, keep: npt.NDArray[np.bool_]) -> Launches:
        """Return some of the launches."""
        return Launches(self.descriptors[keep], self.n_bytes[keep], self.times_us[keep])


@dataclass(frozen=True)
class Fit:
    """Parameters of one series, in microseconds, microseconds per descriptor and per byte.

    Parameters
    ----------
    values
        The parameters, none below zero.
    free
        The same without that bound: what ``covariance`` belongs to.
    influence
        How much each point (column) moves each parameter.
    df
        Points less parameters.
    confounded
        Parameters that these data cannot tell apart; then only sums of them are known.
    sizes, null
        Length of each term over the launches, and the directions of the parameters times
        these (columns) that the data say nothing about.
    rms_error, max_error
        Of the points' mean relative residuals: the model's error.
    noise
        Relative spread of the launches of a point.
    """

    values: Values
    free: Values
    covariance: Values
    influence: Values
    df: int
    n_points: int
    n_launches: int
    confounded: tuple[str, ...]
    sizes: Values
    null: Values
    rms_error: float
    max_error: float
    noise: float

    def half_width(self, x: Values, alpha: float) -> float:
        """Return the half width of the interval of a sum of parameters.

        Few points may carry a parameter, so the degrees of freedom are no more than
        Satterthwaite's for a sum of squares with the points' influences as weights.
        """
        return self.t(x, alpha) * math.sqrt(max(float(x @ self.covariance @ x), 0.0))

    def t(self, x: Values, alpha: float) -> float:
        """Return the quantile that belongs to a sum of parameters; NaN without freedom."""
        if self.df < 1:
            return math.nan
        squares = (x @ self.influence) ** 2
        carried = float(squares.sum() ** 2 / (squares**2).sum()) if squares.any() else 1.0
        return float(stdtrit(min(float(self.df), max(carried, 1.0)), 1 - alpha / 2))

    def interval(self, x: Values, alpha: float) -> tuple[float, float]:
        """Return the interval of a sum of parameters, cut at zero."""
        half = self.half_width(x, alpha)
        centre, value = float(x @ self.free), float(x @ self.values)
        if math.isnan(half):
            return math.nan, math.nan
        return max(min(centre - half, value), 0.0), max(centre + half, value)

    def stated_error(self, x: Values, alpha: float) -> float:
        """Return the half width, as a share, in which a point's mean is to lie.

        t · sqrt(variance of the prediction + (the model's error at a point)²).
        """
        of_fit = math.sqrt(max(float(x @ self.covariance @ x), 0.0)) / float(x @ self.values)
        return self.t(x, alpha) * math.hypot(of_fit, self.rms_error)

    def is_told(self, x: Values) -> bool:
        """Return whether the data determine this sum of parameters."""
        if not self.null.size:
            return True
        scaled = x / self.sizes
        return bool((np.abs(scaled @ self.null) <= 1e-6 * np.linalg.norm(scaled)).all())


def terms(descriptors: float, n_bytes: float) -> Values:
    """Return what the parameters are multiplied with."""
    return np.array([1.0, descriptors, n_bytes])


def fit_cost(launches: Launches) -> Fit:
    """Fit by least squares on relative residuals, weighted down beyond two robust sd (soft L1).

    Each launch weighs the same whatever its time. Intervals come from a jackknife that
    leaves out one *point* with all its launches at a time, and t with points less
    parameters as degrees of freedom: the launches of a point share the model's error
    there, so that leaving out single launches would promise too much (and a bootstrap
    needs more launches than there are).
    """
    x = np.stack([np.ones_like(launches.times_us), launches.descriptors, launches.n_bytes], axis=1)
    relative = x / launches.times_us[:, None]
    sizes = np.linalg.norm(relative, axis=0)
    null = _unknown(relative / sizes)
    weights = _weights(relative, sizes)
    free = _least_squares(relative, sizes, weights)
    values = _not_negative(relative, sizes, weights)
    points = launches.points
    n_points = int(points.max()) + 1
    rank = len(sizes) - null.shape[1]
    residual = relative @ values - 1
    means = np.array([residual[points == i].mean() for i in range(n_points)])
    within = residual - means[points]
    freedom = len(residual) - n_points
    return Fit(
        values=values,
        free=free,
        covariance=_jackknife(relative, sizes, points),
        influence=_influence(relative, sizes, weights, points),
        df=n_points - rank,
        n_points=n_points,
        n_launches=len(residual),
        confounded=tuple(
            name for name, row in zip(PARAMETERS, null, strict=True) if (np.abs(row) > _PART).any()
        ),
        sizes=sizes,
        null=null,
        rms_error=float(np.sqrt((means**2).sum() / max(n_points - rank, 1))),
        max_error=float(np.abs(means).max()),
        noise=float(np.sqrt((within**2).sum() / freedom)) if freedom else math.nan,
    )


def _unknown(scaled: Values) -> Values:
    """Return the directions (columns) in which the scaled terms hardly vary."""
    _, singular, rows = np.linalg.svd(scaled, full_matrices=True)
    padded = np.zeros(rows.shape[0])
    padded[: singular.size] = singular
    return np.asarray(rows[padded < _RANK_SHARE * padded[0]].T, dtype=float)


def _weights(relative: Values, sizes: Values) -> Values:
    """Return the weights of iteratively reweighted least squares with the soft L1 loss."""
    weights = np.ones(len(relative))
    for _ in range(_ROUNDS):
        residual = relative @ _not_negative(relative, sizes, weights) - 1
        scale = max(_NORMAL * float(np.median(np.abs(residual))), _LEAST_SCALE)
        new = 1 / np.sqrt(1 + (residual / (_SOFT * scale)) ** 2)
        if np.abs(new - weights).max() < 1e-6:
            break
        weights = new
    return weights


def _least_squares(relative: Values, sizes: Values, weights: Values) -> Values:
    root = np.sqrt(weights)[:, None]
    solved = np.linalg.lstsq(root * relative / sizes, root[:, 0], rcond=_RANK_SHARE)[0]
    return np.asarray(solved / sizes, dtype=float)


def _not_negative(relative: Values, sizes: Values, weights: Values) -> Values:
    # Half a second to import, and steps that only read the tables use this module too.
    from scipy.optimize import nnls

    root = np.sqrt(weights)[:, None]
    return np.asarray(nnls(root * relative / sizes, root[:, 0])[0] / sizes, dtype=float)


def _jackknife(relative: Values, sizes: Values, points: npt.NDArray[np.intp]) -> Values:
    """Return the covariance of the free parameters, one point left out at a time."""
    n = int(points.max()) + 1
    if n < 2:
        return np.full((len(sizes), len(sizes)), math.nan)
    replicates = np.stack([_refit(relative[points != i], sizes) for i in range(n)])
    away = replicates - replicates.mean(axis=0)
    return np.asarray((n - 1) / n * away.T @ away, dtype=float)


def _influence(
    relative: Values, sizes: Values, weights: Values, points: npt.NDArray[np.intp]
) -> Values:
    """Return the change of each parameter per relative change of a point's launches."""
    scaled = np.sqrt(weights)[:, None] * relative / sizes
    of_launch = np.linalg.pinv(scaled, rcond=_RANK_SHARE) * np.sqrt(weights) / sizes[:, None]
    of_point = [of_launch[:, points == i].sum(axis=1) for i in range(int(points.max()) + 1)]
    return np.stack(of_point, axis=1)


def _refit(relative: Values, sizes: Values) -> Values:
    return _least_squares(relative, sizes, _weights(relative, sizes))
