"""What chance alone would give: surrogates, permutations and resampling, all vectorised.

A null answers one question each. Phase randomisation: would any curve as smooth as this one do?
Swapped episodes: would the angle of another episode do? Random planes: would any two directions of
the same latent do? Circular shifts: would the same labels at another time do?
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.random import Generator


def p_value(observed: float, null: Float[ndarray, "draws"]) -> float:
    """Share of the null at least as large as `observed`, the observation itself counted in.

    Counting it in keeps the test valid at any number of draws: with 199 the smallest p is 0.005.
    """
    null = null[np.isfinite(null)]
    if not np.isfinite(observed) or null.size == 0:
        return float("nan")
    # The tolerance makes a draw that equals the observation up to rounding count as equal.
    reached = null >= observed - 1e-12 * max(1.0, abs(observed))
    return float((1 + reached.sum()) / (1 + null.size))


def summary(observed: float, null: Float[ndarray, "draws"]) -> dict[str, float | int]:
    """How an observation stands in its null, as every result file says it."""
    finite = null[np.isfinite(null)]
    quantiles = np.quantile(finite, [0.5, 0.95]) if finite.size else [np.nan, np.nan]
    return {
        "observed": float(observed),
        "mean": float(finite.mean()) if finite.size else float("nan"),
        "median": float(quantiles[0]),
        "p95": float(quantiles[1]),
        "p": p_value(observed, null),
        "draws": int(finite.size),
    }


def phase_randomised(
    series: Float[ndarray, "time"], draws: int, *, rng: Generator
) -> Float[ndarray, "draws time"]:
    """Curves with the power spectrum of `series` and random phases.

    They are periodic, so a curve that wanders without aim still looks a little more like a clock
    than its own surrogates: this null is reported, and never decides alone.
    """
    size = series.size
    spectrum = np.fft.rfft(series)
    phases = rng.uniform(0, 2 * np.pi, (draws, spectrum.size))
    phases[:, 0] = 0.0
    if size % 2 == 0:
        phases[:, -1] = 0.0  # the highest frequency of an even length is real
    return np.fft.irfft(spectrum * np.exp(1j * phases), n=size, axis=-1)


def random_frames(
    width: int, k: int, draws: int, *, rng: Generator
) -> Float[ndarray, "draws width k"]:
    """`draws` sets of k orthonormal directions, uniform over all of them."""
    frames, upper = np.linalg.qr(rng.standard_normal((draws, width, k)))
    # The sign of the diagonal makes the distribution uniform; a bare QR is not.
    return frames * np.sign(np.einsum("nii->ni", upper))[:, None, :]


def swapped(
    table: Float[ndarray, "*batch episodes episodes"], draws: int, *, rng: Generator
) -> Float[ndarray, "*batch draws"]:
    """Mean over episodes of `table[i, j]` for random assignments of j to i.

    Row i holds a statistic of episode i's series with episode j's: the diagonal is the truth.
    """
    size = table.shape[-1]
    order = rng.permuted(np.tile(np.arange(size), (draws, 1)), axis=1)
    return np.nanmean(table[..., np.arange(size), order], axis=-1)


def sign_flipped(
    values: Float[ndarray, "episodes"], draws: int, *, rng: Generator
) -> Float[ndarray, "draws"]:
    """Mean over episodes when each value may as well have had the other sign."""
    values = values[np.isfinite(values)]
    return (rng.choice([-1.0, 1.0], (draws, values.size)) * values).mean(-1)


def episode_weights(
    num_episodes: int, draws: int, *, rng: Generator
) -> Int[ndarray, "draws episodes"]:
    """How often each episode is drawn in a bootstrap over whole episodes."""
    return rng.multinomial(num_episodes, np.full(num_episodes, 1 / num_episodes), size=draws)


def bootstrap_mean(
    values: Float[ndarray, "episodes"], *, rng: Generator, draws: int = 1000
) -> list[float]:
    """95 % interval of the mean over episodes, resampling whole episodes."""
    values = values[np.isfinite(values)]
    if values.size < 2:
        return [float("nan"), float("nan")]
    return interval(values[rng.integers(values.size, size=(draws, values.size))].mean(-1))


def interval(draws: Float[ndarray, "draws"]) -> list[float]:
    """The middle 95 % of `draws`."""
    finite = draws[np.isfinite(draws)]
    if finite.size == 0:
        return [float("nan"), float("nan")]
    return [float(edge) for edge in np.quantile(finite, [0.025, 0.975])]


def shift_sums(
    values: Float[ndarray, "*batch time"], labels: Bool[ndarray, "time"]
) -> Float[ndarray, "*batch time"]:
    """Sum of `values` under `labels` for every circular shift of the labels, shift 0 first."""
    spectrum = np.fft.rfft(values) * np.conj(np.fft.rfft(labels.astype(float)))
    return np.fft.irfft(spectrum, n=values.shape[-1])


def shifted_totals(
    sums: list[Float[ndarray, "*batch shifts"]], draws: int, *, rng: Generator
) -> Float[ndarray, "*batch draws"]:
    """Totals over episodes when each is shifted by its own random amount, which may be none."""
    total = np.zeros((*sums[0].shape[:-1], draws))
    for own in sums:
        total += own[..., rng.integers(own.shape[-1], size=draws)]
    return total
