"""Planning: solvers find minima, company changes nothing, the fast rollout is the plain one."""

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import sdjepa
from sdjepa.config import Plan as Settings
from sdjepa.data.episodes import ActionStats
from sdjepa.errors import UserError
from sdjepa.model.split import Parts
from sdjepa.plan import engine, solvers
from sdjepa.plan.agent import Planner, Receding
from sdjepa.plan.batch import Bounds, Situation
from sdjepa.plan.costs import candidate_cost
from sdjepa.plan.load import Loaded
from sdjepa.plan.rollout import _fused, attend, attend_each, rollout, run_block
from sdjepa.plan.solvers import SOLVERS, Plan, Problem
from sdjepa.plan.weights import Layer, weights_of
from sdjepa.resolve import resolve
from sdjepa.seeds import stream
from sdjepa.train.checkpoint import Checkpoint
from small import noise, small_config, small_model

SMALL = {"candidates": 16, "elites": 4, "iterations": 3, "horizon": 3, "replan": 1}
STATS = ActionStats(mean=np.array([0.5, -1.0]), std=np.array([2.0, 0.25]))


def small_checkpoint(**changes: object) -> Checkpoint:
    tree = small_config(resolve(rung="A2")).model_dump()
    tree["plan"] |= SMALL | changes
    config = resolve(rung="A2").__class__.model_validate(tree)
    return Checkpoint(small_model().eval(), config, STATS, 0, Path())


def some_frames(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 28, 28, 3), dtype=np.uint8)


# --- solvers


def bowl(target: Tensor) -> solvers.Cost:
    """A minimum at each task's own target, steeper in some directions than in others."""
    steep = torch.linspace(0.5, 2.0, target.shape[-1])
    return lambda x: (steep * (x - target[:, None]).square()).sum(dim=(-1, -2))


def solve(solver: str, target: Tensor, **changes: object) -> Plan:
    settings = Settings.model_validate(
        {"solver": solver, "candidates": 256, "elites": 32, "iterations": 40} | changes
    )
    problem = Problem(
        cost=bowl(target),
        streams=[stream(0, "task", i) for i in range(len(target))],
        guess=torch.zeros_like(target),
        action_dim=2,
    )
    return SOLVERS[solver](problem, settings)


@pytest.mark.parametrize("solver", SOLVERS)
def test_solver_finds_each_tasks_own_minimum(solver: str):
    target = noise(3, 2, 4).clamp(-1.5, 1.5)
    found = solve(solver, target, iterations=100, colour=0.5)
    assert_close(found.actions, target, atol=0.05, rtol=0)
    assert bool((found.best_cost[:, -1] < 0.02 * found.best_cost[:, 0]).all())


@pytest.mark.parametrize("solver", SOLVERS)
def test_solver_respects_bounds_and_finds_the_minimum_on_the_edge(solver: str):
    target = torch.tensor([[[2.0, -0.5, -2.0, 0.25]] * 2])
    low, high = torch.full((4,), -1.0), torch.full((4,), 1.0)
    seen: list[Tensor] = []

    def cost(x: Tensor) -> Tensor:
        seen.append(x.detach())
        return bowl(target)(x)

    settings = Settings.model_validate({"solver": solver, "candidates": 128, "iterations": 60})
    problem = Problem(cost, [stream(0)], torch.zeros(1, 2, 4), 2, low=low, high=high)
    found = SOLVERS[solver](problem, settings)
    assert float(torch.cat(seen, dim=1).abs().max()) <= 1.0
    assert_close(found.actions, target.clamp(-1, 1), atol=0.06, rtol=0)


def test_cem_is_the_protocols():
    """The same numbers as a literal transcription of the published procedure."""
    target, settings = noise(1, 5, 10), Settings(candidates=32, elites=8, iterations=5)
    generator = stream(3, "task")
    mean, std = torch.zeros(5, 10), torch.ones(5, 10)
    cost = bowl(target)
    draws = torch.randn(solvers.ROUNDS_DRAWN, 32, 5, 10, generator=generator)
    for step in range(5):
        candidates = mean + std * draws[step]
        candidates[0] = mean
        order = cost(candidates[None])[0].argsort()[:8]
        mean, std = candidates[order].mean(0), candidates[order].std(0, correction=1)
    problem = Problem(cost, [stream(3, "task")], torch.zeros(1, 5, 10), 2)
    assert_close(solvers.cem(problem, settings).actions[0], mean, atol=1e-6, rtol=0)


def test_coloured_noise_has_unit_variance_and_leans_to_low_frequencies():
    assert_close(solvers._colouring(25, 0.0), torch.eye(25, dtype=torch.float64))
    red = solvers._colouring(25, 2.0)
    covariance = red @ red.T
    assert_close(covariance.diagonal(), torch.ones(25, dtype=torch.float64))
    assert float(covariance.diagonal(1).min()) > 0.6


def test_correlated_noise_has_unit_variance_and_the_correlation_it_was_given():
    by = solvers._correlating(25, 0.8)
    apart = (torch.arange(25)[:, None] - torch.arange(25)).abs()
    assert_close(by @ by.T, 0.8 ** apart.double())
    problem = Problem(bowl(noise(1, 5, 10)), [stream(0)], torch.zeros(1, 5, 10), 2)
    white = next(problem.noise(2000))
    steps = problem.filtered(white, by.float())[0].reshape(2000, 25, 2)
    found = (steps[:, 1:] * steps[:, :-1]).mean((0, 1))  # also from one block to the next
    assert_close(found, torch.full((2,), 0.8), atol=0.03, rtol=0)
    assert abs(float((steps[..., 0] * steps[..., 1]).mean())) < 0.02  # and of no other coordinate


def test_a_search_with_correlated_noise_reaches_far_straight_pushes():
    """Of a plan as long as five deviations at every step white noise has nobody near it."""
    far = torch.full((1, 5, 10), 1.5)

    def cost(x: Tensor) -> Tensor:  # flat until the sum of all actions comes near
        gap = (x - far[:, None]).sum((-2, -1)).square() / 50
        return gap.clamp(max=40.0)

    def least(correlation: float) -> float:
        settings = Settings(iterations=3, correlation=correlation)
        problem = Problem(cost, [stream(0)], torch.zeros_like(far), 2)
        return float(solvers.cem(problem, settings).best_cost[0, 0])

    assert least(0.0) == 40.0
    assert least(0.9) < 20.0


def test_correlated_candidates_are_the_share_that_was_asked_for():
    def first_round(correlated: float) -> Tensor:
        seen = []

        def cost(x: Tensor) -> Tensor:
            seen.append(x[0])
            return x.square().sum((-2, -1))

        settings = Settings(
            candidates=40, elites=4, iterations=1, correlation=0.8, correlated=correlated
        )
        solvers.cem(Problem(cost, [stream(0)], torch.zeros(1, 5, 10), 2), settings)
        return seen[0]

    white, half, all_of_them = first_round(0.0), first_round(0.5), first_round(1.0)
    assert_close(half[:20], white[:20])
    assert_close(half[20:], all_of_them[20:])
    assert not torch.allclose(white[1:], all_of_them[1:])


def test_a_time_budget_decides_the_number_of_rounds(monkeypatch: pytest.MonkeyPatch):
    ticks = itertools.count()
    monkeypatch.setattr(solvers.time, "monotonic", lambda: float(next(ticks)))
    found = solve("cem", noise(2, 2, 4), seconds=3.5, iterations=1)  # two tasks: seven seconds
    assert found.best_cost.shape == (2, 7)
    found = solve("cem", noise(2, 2, 4), seconds=1e-9, iterations=1)
    assert found.best_cost.shape == (2, 1)


def test_the_least_cost_along_the_horizon_is_one_of_the_settings():
    goal = Parts(progress=torch.zeros(1, 0), content=torch.zeros(1, 2))
    path = torch.tensor([[[[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]]]])
    parts = Parts(progress=path[..., :0], content=path)
    for when, expected in (("last", 4.0), ("sum", 14.0), ("min", 1.0)):
        settings = Settings.model_validate({"cost": "full", "when": when})
        assert candidate_cost(parts, goal, settings=settings).item() == expected


def test_effort_is_the_price_of_acting():
    frames, goals = some_frames(3), some_frames(3, seed=1)
    sizes = []
    for effort in (0.0, 1e-2, 1e4):
        planner = Planner(small_checkpoint(effort=effort, candidates=64, iterations=8))
        streams = [stream(0, "effort", i) for i in range(3)]
        sizes.append(planner.blocks(planner.plan(frames, goals, streams=streams)).square().mean())
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 0.05


# --- company


@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_plan_is_the_same_alone_and_in_company(solver: str, history: int):
    """Bit-equal for 1, 7 and 50 tasks, over two rounds of planning with memory and warm start."""
    planner = Planner(small_checkpoint(solver=solver, history=history, candidates=8, iterations=2))
    frames, goals = some_frames(100), some_frames(50, seed=1)

    def acted(numbers: list[int]) -> np.ndarray:
        rounds = iter((frames[:50], frames[50:]))
        now: list[np.ndarray] = []

        def camera(active: list[int]) -> np.ndarray:
            return now[-1][[numbers[i] for i in active]]

        agent = Receding(
            planner, camera, goals=goals[numbers], names=[("task", n) for n in numbers]
        )
        found = []
        for part in rounds:
            now.append(part)
            found.append(agent(list(range(len(numbers)))))
        return np.concatenate(found, axis=1)

    together = acted(list(range(50)))
    assert np.array_equal(together[:7], acted(list(range(7))))
    assert np.array_equal(together[3:4], acted([3]))
    assert not np.array_equal(together[3], together[4])


# --- the fast rollout


@pytest.mark.parametrize("polar", ["off", "ref", "paper"])
@pytest.mark.parametrize("context", [1, 2, 3, 4])
def test_cached_rollout_equals_the_plain_one(context: int, polar: str):
    model = small_model(polar=polar, k=4).eval().double()
    latents, actions = noise(6, context, 16).double(), noise(6, 7, 10, seed=1).double()
    past = noise(6, context - 1, 10, seed=2).double()
    plain = model.rollout(latents, past, actions)
    assert plain.std() > 0.05
    assert_close(rollout(weights_of(model), latents, past, actions), plain, atol=1e-10, rtol=0)


@pytest.mark.parametrize("queries", [1, 3])
def test_attention_written_out_is_the_fused_one(queries: int):
    q, k, v = noise(queries, 5, 2, 8), noise(3, 5, 2, 8, seed=1), noise(3, 5, 2, 8, seed=2)
    assert_close(attend(q, k, v), _fused(q, k, v))
    assert_close(attend_each(q, [k[:1], k[1:]], [v[:1], v[1:]]), _fused(q, k, v))


def test_cached_rollout_has_the_plain_ones_gradient():
    model = small_model().eval().double()
    latents, actions = noise(3, 1, 16).double(), noise(3, 5, 10, seed=1).double()
    grads = []
    for way in (model.rollout, lambda *given: rollout(weights_of(model), *given)):
        x = actions.clone().requires_grad_()
        grads.append(torch.autograd.grad(way(latents, x[:, :0], x)[:, -1].square().sum(), x)[0])
    assert grads[0].abs().max() > 1e-3
    assert_close(grads[1], grads[0], atol=1e-10, rtol=0)


def test_cached_rollout_computes_nine_tokens_where_the_plain_one_computes_twelve():
    model = small_model().eval()
    weights = weights_of(model)
    count = 0

    def plainly(module: torch.nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        nonlocal count
        count += given[0].shape[1]

    def counted(layer: Layer, x: Tensor, *rest: Any) -> Any:
        nonlocal count
        count += len(x) if layer is weights.layers[0] else 0
        return run_block(layer, x, *rest)

    model.predictor.blocks[0].get_submodule("norm_attention").register_forward_hook(plainly)
    latents, actions = noise(2, 1, 16), noise(2, 5, 10)
    model.rollout(latents, actions[:, :0], actions)
    plain, count = count, 0
    rollout(weights, latents, actions[:, :0], actions, block=counted)
    assert (plain, count) == (12, 9)


def test_half_precision_changes_the_rollout_by_its_rounding():
    """Errors of the size of bfloat16's 2^-9 a product, and far below what actions change."""
    model = small_model(predictor_width=32).eval()
    latents, actions = noise(64, 1, 16), noise(64, 5, 10, seed=1)
    plain = model.rollout(latents, actions[:, :0], actions)
    with torch.no_grad():
        half = rollout(weights_of(model, torch.bfloat16), latents, actions[:, :0], actions)
    assert half.dtype == torch.float32
    error = (half - plain.detach()).square().mean().sqrt() / (plain - plain.mean(dim=0)).std()
    assert 1e-4 < error.item() < 0.05


def test_a_learned_split_is_solved_for_once_and_the_same():
    model = small_model(split="learned", k=4).eval()
    assert model.split.tilt is not None
    with torch.no_grad():
        model.split.tilt.copy_(noise(12, 4))
    parts, once = model.split(noise(5, 16)), engine._split_once(model)(noise(5, 16))
    assert_close(once.progress, parts.progress)
    assert_close(once.content, parts.content)


def test_a_recorded_round_serves_later_plans(monkeypatch: pytest.MonkeyPatch):
    """What a CUDA graph does: the first round's code runs for ever, on fixed places in memory."""
    recorded: list[object] = []

    class Recording:
        def __init__(self, step: solvers.Step, inputs: tuple[Tensor, ...], *, pool: object) -> None:
            recorded.append(step)
            self.step, self.inputs = step, tuple(x.clone() for x in inputs)
            self.outputs = tuple(x.clone() for x in step(*self.inputs))

        def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            for held, new in zip(self.inputs, inputs, strict=True):
                held.copy_(new)
            for held, new in zip(self.outputs, self.step(*self.inputs), strict=True):
                held.copy_(new)
            return self.outputs

    monkeypatch.setattr(engine, "_Replay", Recording)
    plain, fast = (Planner(small_checkpoint(iterations=4)) for _ in range(2))
    fast._engine._recording = True
    for seed in range(3):
        frames, goals = some_frames(2, seed=seed), some_frames(2, seed=10 + seed)
        plans = [
            planner.plan(frames, goals, streams=[stream(seed, i) for i in range(2)])
            for planner in (plain, fast)
        ]
        assert np.array_equal(plans[0], plans[1])
    assert len(recorded) == 1


@pytest.mark.slow
def test_compiled_blocks_serve_every_batch_and_horizon():
    """Equal latents without a break in the graph, and no new compilation for another size."""
    weights = weights_of(small_model(history=3).eval())
    torch._dynamo.reset()
    parts = engine.compiled_parts("aot_eager")
    counted = []
    with torch.no_grad():
        for batch, horizon in ((12, 5), (40, 5), (12, 3), (36, 4), (12, 7)):
            latents, actions = noise(batch, 1, 16), noise(batch, horizon, 10, seed=1)
            found = rollout(weights, latents, actions[:, :0], actions, **parts)
            assert_close(found, rollout(weights, latents, actions[:, :0], actions))
            counted.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    # One token after none, one and two others; three tokens; three of which one is read; the exit.
    assert counted == [counted[0]] * 5
    assert torch._dynamo.utils.counters["graph_break"] == {}


# --- receding horizon


class Spy:
    """Remembers every search and answers with recognisable blocks."""

    def __init__(self, planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.situations: list[Situation] = []
        self.horizons: list[int] = []
        self.guesses: list[Tensor | None] = []
        self.planner = planner
        self.blocks = 0
        monkeypatch.setattr(planner, "search", self.search)

    def search(
        self,
        situation: Situation,
        *,
        streams: Sequence[torch.Generator],
        horizon: int,
        guess: Tensor | None,
        progress: object,
    ) -> Plan:
        self.situations.append(situation)
        self.horizons.append(horizon)
        self.guesses.append(guess)
        actions = noise(1, horizon, 10, seed=len(self.horizons))
        return Plan(actions=actions, best_cost=torch.zeros(1, 1))


@pytest.mark.parametrize("history", [1, 2, 3])
@pytest.mark.parametrize("replan", [1, 2, 5])
def test_the_model_sees_the_last_frames_and_the_actions_executed_between(
    history: int, replan: int, monkeypatch: pytest.MonkeyPatch
):
    planner = Planner(small_checkpoint(history=history, horizon=5, replan=replan, ahead="fixed"))
    spy = Spy(planner, monkeypatch)
    frames, sent, shown = some_frames(60), [], []

    def camera(active: list[int]) -> np.ndarray:
        shown.append(sum(len(a) for a in sent) // 5)
        return frames[shown[-1]][None]

    agent = Receding(planner, camera, goals=some_frames(1, seed=9), names=[("a",)])
    while len(spy.situations) < 4:
        sent.append(agent([0])[0])
    executed = planner.blocks(np.concatenate(sent)[None])[0]
    for number, situation in enumerate(spy.situations):
        block = number * replan
        context = min(history, block + 1)
        first = block + 1 - context
        latents = planner.encode(frames[first : block + 1])
        assert_close(situation.start[0], latents, atol=0, rtol=0)
        assert_close(situation.past[0], executed[first:block], atol=1e-5, rtol=0)
    # Frames are drawn only where a plan will read them.
    wanted = {b for n in range(4) for b in range(max(0, n * replan + 1 - history), n * replan + 1)}
    assert {b for b in shown if b <= 3 * replan} == wanted
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize(
    ("ahead", "horizons"), [("fixed", [5] * 7), ("shrink", [5, 4, 3, 2, 1, 5, 4])]
)
def test_a_shrinking_horizon_ends_where_the_first_plan_ended(
    ahead: str, horizons: list[int], monkeypatch: pytest.MonkeyPatch
):
    planner = Planner(small_checkpoint(ahead=ahead, horizon=5, replan=1))
    spy = Spy(planner, monkeypatch)
    agent = Receding(planner, lambda _: some_frames(1), goals=some_frames(1), names=[("a",)])
    steps = [agent([0]).shape[1] for _ in range(7)]
    assert spy.horizons == horizons
    assert steps == [5] * 7


def test_shrinking_with_two_blocks_a_plan_never_runs_past_the_end(monkeypatch: pytest.MonkeyPatch):
    planner = Planner(small_checkpoint(ahead="shrink", horizon=5, replan=2))
    spy = Spy(planner, monkeypatch)
    agent = Receding(planner, lambda _: some_frames(1), goals=some_frames(1), names=[("a",)])
    assert [agent([0]).shape[1] // 5 for _ in range(4)] == [2, 2, 1, 2]
    assert spy.horizons == [5, 3, 1, 5]


def test_a_warm_start_is_what_the_last_plan_left(monkeypatch: pytest.MonkeyPatch):
    for warm in (True, False):
        planner = Planner(small_checkpoint(warm_start=warm, horizon=3, replan=1))
        spy = Spy(planner, monkeypatch)
        agent = Receding(planner, lambda _: some_frames(1), goals=some_frames(1), names=[("a",)])
        agent([0]), agent([0])
        assert spy.guesses[0] is None
        if warm:
            assert spy.guesses[1] is not None
            assert_close(spy.guesses[1], noise(1, 3, 10, seed=1)[:, 1:])
        else:
            assert spy.guesses[1] is None


def test_a_guess_shorter_than_the_horizon_is_filled_with_rest():
    planner = Planner(small_checkpoint(solver="gradient", candidates=2, elites=2, iterations=1))
    latents = planner.encode(some_frames(2))
    situation = Situation(latents[None, :1], torch.zeros(1, 0, 10), latents[1:])
    seen: list[Tensor] = []
    cost, _ = planner._engine.prepare(situation.start, situation.past, situation.goal)

    def spied(*_: object) -> tuple[solvers.Cost, object]:
        return (lambda x: (seen.append(x.detach().clone()), cost(x))[1]), solvers.as_it_is

    planner._engine.prepare = spied  # type: ignore[method-assign]
    guess = noise(1, 2, 10)
    planner.search(situation, streams=[stream(0)], guess=guess)
    assert_close(seen[-1][0, 0, :2], guess[0])
    assert_close(seen[-1][0, 0, 2:], torch.zeros(1, 10))


# --- for people with their own robot


def test_load_plans_without_environment_or_dataset_and_needs_no_torch_to_import():
    check = "import sys, sdjepa; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
    loaded = Loaded(small_checkpoint())
    frame, goal = some_frames(2)
    actions = loaded.plan(frame, goal)
    assert actions.shape == (15, 2)
    assert np.array_equal(actions, loaded.plan(frame, goal))
    assert not np.allclose(actions, loaded.plan(frame, goal, seed=1))
    assert not np.allclose(actions, loaded.plan(frame, some_frames(1, seed=5)[0]))
    before = some_frames(1, seed=6)[0]
    remembered = loaded.plan(frame, goal, past_frames=[before], past_actions=np.ones((5, 2)))
    other = loaded.plan(frame, goal, past_frames=[before], past_actions=np.zeros((5, 2)))
    assert not np.allclose(remembered, actions)
    assert not np.allclose(remembered, other)


def test_a_driver_looks_when_it_plans():
    loaded = Loaded(small_checkpoint(replan=2, horizon=4))
    driver = loaded.toward(some_frames(1)[0])
    first = driver.act(some_frames(1, seed=1)[0])
    second = driver.act(some_frames(1, seed=2)[0])
    assert first.shape == second.shape == (10, 2)
    assert not np.allclose(first, second)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.plan(np.zeros((32, 32, 3), np.uint8), some_frames(1)[0]), "resize"),
        (lambda m: m.plan(some_frames(1)[0] / 255, some_frames(1)[0]), "uint8"),
        (lambda m: m.plan(*some_frames(2), past_frames=some_frames(1)), "5 x 2 past actions"),
        (
            lambda m: m.plan(*some_frames(2), past_frames=some_frames(3), past_actions=STEPS),
            "reads 3 frames",
        ),
    ],
)
def test_what_a_robot_cannot_give_is_named(call: object, said: str):
    assert callable(call)
    with pytest.raises(UserError, match=said):
        call(Loaded(small_checkpoint()))


STEPS = np.zeros((15, 2))


def test_settings_that_contradict_the_model_are_refused():
    with pytest.raises(UserError, match="exceeds the 3 latents"):
        Planner(small_checkpoint(history=4))
    with pytest.raises(UserError, match="give bounds"):
        Planner(small_checkpoint(bounds="clip"))
    bad, wide = small_checkpoint(), ActionStats(mean=np.zeros(3), std=np.ones(3))
    with pytest.raises(UserError, match="blocks of 10"):
        Planner(Checkpoint(bad.model, bad.config, wide, 0, Path()))


def test_bounds_are_raw_actions():
    bounds = Bounds(low=np.array([0.0, -1.1]), high=np.array([1.0, -0.9]))
    planner = Planner(small_checkpoint(bounds="clip"), bounds=bounds)
    plan = planner.plan(some_frames(1), some_frames(1, seed=1), streams=[stream(0)])
    assert bool((plan >= bounds.low - 1e-6).all() and (plan <= bounds.high + 1e-6).all())
    free = Planner(small_checkpoint()).plan(
        some_frames(1), some_frames(1, seed=1), streams=[stream(0)]
    )
    assert not bool((free >= bounds.low).all() and (free <= bounds.high).all())


def test_reading_a_frame_gives_its_angle():
    found = Loaded(small_checkpoint()).read(some_frames(3))
    expected = np.arctan2(found["progress"][:, 1], found["progress"][:, 0])
    np.testing.assert_allclose(found["angle"], expected, atol=1e-6)


def test_the_public_door_is_load(tmp_path: Path):
    with pytest.raises(UserError, match="does not exist"):
        sdjepa.load(tmp_path / "nowhere")
