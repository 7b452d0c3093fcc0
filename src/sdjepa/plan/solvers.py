"""Search for the actions of least cost: a problem and settings in, a plan per task out.

A task draws from its own stream and nothing is shared between tasks, so its plan does not depend on
which tasks share the batch.

    cem       sample, keep the elites, refit mean and deviation; the plan is the last mean
    icem      cem with noise coloured in time, elites carried over, fewer candidates every round
    mppi      cem whose elites are weighted by how good they are
    gradient  Adam on many starts at once, through the model
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sdjepa.config import Plan as Settings

Cost = Callable[
    [Float[Tensor, "tasks candidates horizon block"]], Float[Tensor, "tasks candidates"]
]
Step = Callable[..., tuple[Tensor, ...]]
ROUNDS_DRAWN = 8  # rounds of noise a stream draws at once: a launch per task and round is slow
ADAM = (0.9, 0.999)


def as_it_is(step: Step) -> Step:
    return step


@dataclass(frozen=True)
class Problem:
    """What to minimise, from where, and each task's random numbers."""

    cost: Cost
    streams: Sequence[torch.Generator]
    guess: Float[Tensor, "tasks horizon block"]  # zeros, or what an earlier plan left over
    action_dim: int  # a block is block / action_dim actions, in time order
    low: Float[Tensor, "block"] | None = None  # in normalised units
    high: Float[Tensor, "block"] | None = None
    accelerate: Callable[[Step], Step] = as_it_is  # may record a round and replay it

    def inside(self, actions: Float[Tensor, "*shape block"]) -> Float[Tensor, "*shape block"]:
        """Actions clipped to the bounds, where there are any."""
        return actions if self.low is None else actions.clamp(self.low, self.high)

    def noise(self, candidates: int) -> Iterator[Float[Tensor, "tasks candidates horizon block"]]:
        """Standard Gaussian candidates, round after round, white in time."""
        shape = (ROUNDS_DRAWN, candidates, *self.guess.shape[1:])
        while True:
            drawn = [torch.randn(shape, generator=g, device=g.device) for g in self.streams]
            rounds = torch.stack(drawn, dim=1).to(self.guess.device)
            yield from rounds.unbind(dim=0)

    def filtered(
        self,
        noise: Float[Tensor, "tasks candidates horizon block"],
        by: Float[Tensor, "steps steps"],
    ) -> Float[Tensor, "tasks candidates horizon block"]:
        """Noise mixed over time, each action from those of the whole horizon."""
        # Neighbours in time are correlated: a straight push, not a shiver that averages to nothing.
        steps = noise.reshape(*noise.shape[:2], len(by), self.action_dim)
        return torch.einsum("ts,ncsa->ncta", by, steps).reshape(noise.shape)


@dataclass(frozen=True)
class Plan:
    """Normalised action blocks to execute, and how the search went."""

    actions: Float[Tensor, "tasks horizon block"]
    best_cost: Float[Tensor, "tasks rounds"]  # of the best candidate of each round


def rounds(settings: Settings, problem: Problem) -> Iterator[int]:
    """Round numbers until the iterations, or the seconds where those are set, are used up."""
    if not settings.seconds:
        yield from range(settings.iterations)
        return
    ends = time.monotonic() + settings.seconds * len(problem.streams)
    number = 0
    while number == 0 or time.monotonic() < ends:
        yield number
        if problem.guess.is_cuda:  # the clock must see work that was done, not work that was queued
            torch.cuda.synchronize(problem.guess.device)
        number += 1


def _best(
    candidates: Float[Tensor, "tasks candidates horizon block"],
    costs: Float[Tensor, "tasks candidates"],
    count: int,
) -> tuple[Tensor, Tensor]:
    """The `count` cheapest candidates of each task and their costs, cheapest first."""
    lowest = costs.topk(count, dim=1, largest=False)
    where = lowest.indices[..., None, None].expand(-1, -1, *candidates.shape[2:])
    return candidates.gather(1, where), lowest.values


def cem(problem: Problem, settings: Settings) -> Plan:
    """The cross-entropy method as the benchmark runs it.

    The current mean is always candidate 0. The elites' unbiased standard deviation is used as it
    is: no floor, no momentum, and no clipping unless bounds are given.
    """

    def improve(mean: Tensor, std: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        candidates = mean[:, None] + std[:, None] * noise
        candidates = problem.inside(torch.cat([mean[:, None], candidates[:, 1:]], dim=1))
        elites, values = _best(candidates, problem.cost(candidates), settings.elites)
        return elites.mean(dim=1), elites.std(dim=1), values[:, 0]

    return _refine(problem, settings, improve)


def mppi(problem: Problem, settings: Settings) -> Plan:
    """Path-integral control: elites weigh exp(-cost), in units of the spread of their own costs."""

    def improve(mean: Tensor, std: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        candidates = mean[:, None] + std[:, None] * noise
        candidates = problem.inside(torch.cat([mean[:, None], candidates[:, 1:]], dim=1))
        elites, values = _best(candidates, problem.cost(candidates), settings.elites)
        spread = values.std(dim=1, keepdim=True).clamp(min=1e-12)
        weights = torch.softmax(-(values - values[:, :1]) / (settings.temperature * spread), dim=1)
        weights = weights[..., None, None]
        mean = (weights * elites).sum(dim=1)
        std = (weights * (elites - mean[:, None]).square()).sum(dim=1).sqrt()
        return mean, std, values[:, 0]

    return _refine(problem, settings, improve)


def _refine(problem: Problem, settings: Settings, improve: Step) -> Plan:
    improve = problem.accelerate(improve)
    mean = problem.inside(problem.guess)
    std = torch.full_like(mean, settings.initial_std)
    drawn = problem.noise(settings.candidates)
    steps = mean.shape[1] * mean.shape[2] // problem.action_dim
    by = _correlating(steps, settings.correlation).to(mean)
    white = settings.candidates - round(settings.correlated * settings.candidates)
    trace = []
    for _ in rounds(settings, problem):
        noise = next(drawn)
        if settings.correlation:
            noise = torch.cat([noise[:, :white], problem.filtered(noise[:, white:], by)], dim=1)
        mean, std, best = improve(mean, std, noise)
        trace.append(best.clone())  # a replayed round reuses its memory
    return Plan(actions=mean.clone(), best_cost=torch.stack(trace, dim=1))


def icem(problem: Problem, settings: Settings) -> Plan:
    """Improved CEM (Pinneri et al. 2020); the plan is the best candidate seen in any round."""
    mean = problem.inside(problem.guess)
    std = torch.full_like(mean, settings.initial_std)
    tasks, horizon, block = mean.shape
    colour = _colouring(horizon * block // problem.action_dim, settings.colour).to(mean)
    kept = mean[:, None]
    best, least, trace = mean, mean.new_full((tasks,), torch.inf), []
    drawn = problem.noise(settings.candidates)
    for number in rounds(settings, problem):
        count = max(2 * settings.elites, int(settings.candidates / settings.decay**number))
        noise = next(drawn)[:, : min(count, settings.candidates)]
        noise = problem.filtered(noise, colour)
        fresh = problem.inside(mean[:, None] + std[:, None] * noise)
        candidates = torch.cat([mean[:, None], kept, fresh], dim=1)
        elites, values = _best(candidates, problem.cost(candidates), settings.elites)
        better = values[:, 0] < least
        best = torch.where(better[:, None, None], elites[:, 0], best)
        least = torch.where(better, values[:, 0], least)
        mean = settings.momentum * mean + (1 - settings.momentum) * elites.mean(dim=1)
        std = settings.momentum * std + (1 - settings.momentum) * elites.std(dim=1)
        kept = elites[:, : max(1, round(settings.keep * settings.elites))]
        trace.append(values[:, 0])
    return Plan(actions=best, best_cost=torch.stack(trace, dim=1))


def _correlating(steps: int, correlation: float) -> Float[Tensor, "steps steps"]:
    """White noise in time to noise of this correlation with the next step, of unit variance."""
    at = torch.arange(steps, dtype=torch.float64)
    fading = torch.tril(correlation ** (at[:, None] - at).clamp(min=0))
    fading[:, 1:] *= (1 - correlation**2) ** 0.5
    return fading


def _colouring(steps: int, exponent: float) -> Float[Tensor, "steps steps"]:
    """White noise in time to noise of spectrum 1 / f**exponent, unit variance at every step."""
    frequency = torch.fft.rfftfreq(steps, dtype=torch.float64).clamp(min=1 / steps)
    weight = frequency ** (-exponent / 2)
    white = torch.fft.rfft(torch.eye(steps, dtype=torch.float64), dim=0)
    filtered = torch.fft.irfft(weight[:, None] * white, n=steps, dim=0)
    return filtered / filtered.square().sum(dim=1, keepdim=True).sqrt()


def gradient(problem: Problem, settings: Settings) -> Plan:
    """Adam on every start at once; the plan is the best point any start passed through."""
    points = problem.guess[:, None] + settings.initial_std * next(
        problem.noise(settings.candidates)
    )
    points = problem.inside(torch.cat([problem.guess[:, None], points[:, 1:]], dim=1))
    first, second = torch.zeros_like(points), torch.zeros_like(points)
    best = problem.guess
    least, trace = best.new_full((len(best),), torch.inf), []
    for number in rounds(settings, problem):
        points.requires_grad_()
        with torch.enable_grad():
            costs = problem.cost(points)
            (slope,) = torch.autograd.grad(costs.sum(), points)
        points = points.detach()
        found, values = _best(points, costs.detach(), 1)
        better = values[:, 0] < least
        best = torch.where(better[:, None, None], found[:, 0], best)
        least = torch.where(better, values[:, 0], least)
        trace.append(values[:, 0])
        # Adam in four lines: torch's own imports its compiler first, which takes ten seconds.
        first = ADAM[0] * first + (1 - ADAM[0]) * slope
        second = ADAM[1] * second + (1 - ADAM[1]) * slope.square()
        speed = (second / (1 - ADAM[1] ** (number + 1))).sqrt() + 1e-8
        points = points - settings.step_size * first / (1 - ADAM[0] ** (number + 1)) / speed
        points = problem.inside(points)
    return Plan(actions=best, best_cost=torch.stack(trace, dim=1))


SOLVERS: dict[str, Callable[[Problem, Settings], Plan]] = {
    "cem": cem,
    "icem": icem,
    "mppi": mppi,
    "gradient": gradient,
}
