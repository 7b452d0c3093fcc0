"""Every knob of every stage on one page, with the paper's value as the default.

What a setting may be and which settings go together is checked here; `resolve.py` makes a
configuration of a recipe, a rung and `--set`.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MANY = 10**8  # more than this is a slip of the keyboard


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Collect(Section):
    """How `sdjepa collect` makes a dataset."""

    env: str = "tworoom"
    episodes: int = Field(default=10_000, ge=1, le=MANY)
    steps: int = Field(default=100, ge=1, le=MANY)  # of the environment; frames are one more
    # 0 = episodes decide; else as many episodes as make this many
    frames: int = Field(default=0, ge=0, le=MANY * 10)
    policy: str = "auto"  # auto = the environment's first
    noise: float = Field(default=1.0, ge=0, le=1e6)  # in the environment's measure; 0 = none
    demos: str = ""  # demonstrations to replay, where the environment has any
    shadow: int = Field(default=0, ge=0)  # side of the map; 0 = the benchmark's; changes pixels
    size: int = Field(default=224, ge=8)  # pixels, square
    seed: int = 0
    workers: int = Field(default=0, ge=0)  # 0 = one per core; the data do not depend on it
    validation_share: float = Field(default=0.05, ge=0, lt=1)  # of episodes
    test_share: float = Field(default=0.05, ge=0, lt=1)


class Data(Section):
    """Episodes to windows."""

    path: str = "data/tworoom"
    frame_skip: int = Field(default=5, ge=1)  # environment steps per model step and action block
    window_frames: int = Field(default=4, ge=2)
    tail: Literal["ref", "full"] = "ref"  # ref keeps room for an unused last action block
    frames_on: Literal["auto", "device", "host", "disk"] = "auto"  # where frames wait; auto = fits


class Model(Section):
    """The paper's architecture; a smaller model is another set of widths, not another model."""

    image_size: int = Field(default=224, ge=8)
    patch: int = Field(default=14, ge=1)
    # 0 = every patch. Else the patches a frame is read by: those furthest from the background
    tokens: int = Field(default=0, ge=0)
    encoder_width: int = Field(default=192, ge=1)
    encoder_depth: int = Field(default=12, ge=1)
    encoder_heads: int = Field(default=3, ge=1)
    encoder_mlp: int = Field(default=768, ge=1)
    latent: int = Field(default=192, ge=2)
    projector_hidden: int = Field(default=2048, ge=1)
    history: int = Field(default=3, ge=1)  # latents the predictor reads
    predictor_width: int = Field(default=192, ge=1)
    predictor_depth: int = Field(default=6, ge=1)
    predictor_heads: int = Field(default=16, ge=1)
    predictor_head_dim: int = Field(default=64, ge=1)
    predictor_mlp: int = Field(default=2048, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    action_dim: int = Field(default=0, ge=0)  # 0 = taken from the dataset when training starts
    frame_skip: int = Field(default=0, ge=0)  # 0 = data.frame_skip
    action_width: Literal["ref", "block"] = "ref"  # ref: a constant 10, a bottleneck for Cube
    k: int = Field(default=2, ge=0)  # width of the progress part; 0 = no split (LeWM)
    split: Literal["fixed", "learned"] = "fixed"  # learned: a rotation of the latent, then slicing
    polar: Literal["off", "paper", "ref"] = "off"  # angle and radius condition the predictor
    progress_head: bool = False  # a learned scalar readout of the progress part

    @property
    def grid(self) -> int:
        """Patches a side."""
        return self.image_size // self.patch

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.image_size % self.patch:
            raise ValueError(f"model.image_size {self.image_size} is no multiple of model.patch")
        if self.tokens > self.grid**2:
            raise ValueError(f"model.tokens = {self.tokens} exceeds the {self.grid**2} patches")
        if self.encoder_width % self.encoder_heads:
            raise ValueError("model.encoder_width must be a multiple of model.encoder_heads")
        if self.k >= self.latent:
            raise ValueError(f"model.k = {self.k} leaves no content in a latent of {self.latent}")
        if self.k == 1:
            raise ValueError("model.k = 1 has no angle; use 0 or at least 2")
        if self.polar != "off" and self.k < 2:
            raise ValueError("model.polar needs model.k >= 2")
        if self.progress_head and self.k < 2:
            raise ValueError("model.progress_head needs model.k >= 2")
        return self


class Objectives(Section):
    """Weights of the terms; weight 0 = neither computed nor logged."""

    prediction_weight: float = Field(default=1.0, ge=0)
    sigreg_weight: float = Field(default=0.09, ge=0)
    triplet_weight: float = Field(default=0.10, ge=0)
    straighten_weight: float = Field(default=0.0, ge=0)
    prototype_weight: float = Field(default=0.0, ge=0)
    first_anchor_weight: float = Field(default=0.0, ge=0)
    rollout_weight: float = Field(default=0.0, ge=0)
    progress_head_weight: float = Field(default=0.0, ge=0)

    sigreg_directions: int = Field(default=1024, ge=1)
    sigreg_knots: int = Field(default=17, ge=2)
    triplet_on: Literal["progress", "full"] = "progress"
    triplet_sampler: Literal["ref", "paper"] = "ref"  # ref carries no order, see docs/objectives.md
    triplet_margin: float = Field(default=0.2, ge=0)
    triplet_radius: int = Field(
        default=1, ge=1
    )  # frames of a window around the anchor that are positives
    triplet_other_share: float = Field(
        default=0.5, ge=0, le=1
    )  # paper: negatives from another episode
    straighten_on: Literal["full", "content", "progress"] = "full"
    first_anchor_steps: int = Field(default=3, ge=1)
    rollout_blocks: int = Field(default=2, ge=1, le=5)


class Train(Section):
    """Losses to checkpoint."""

    seed: int = 3072
    epochs: int = Field(default=10, ge=1)
    steps: int = Field(default=0, ge=0)  # 0 = epochs decide
    batch: int = Field(default=128, ge=2)
    learning_rate: float = Field(default=5e-5, gt=0)
    weight_decay: float = Field(default=1e-3, ge=0)
    decay_on: Literal["all", "matrices"] = "all"  # matrices: no decay on biases, norms, tables
    beta2: float = Field(default=0.999, gt=0, lt=1)
    warmup_share: float = Field(default=0.05, ge=0, lt=1)  # of all steps, linear from 0
    clip: float = Field(default=1.0, gt=0)  # global gradient norm
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: on the matrices inside transformer blocks
    ema: float = Field(default=0.0, ge=0, lt=1)  # 0 = off; else the average that is evaluated
    accumulate: int = Field(default=1, ge=1)  # encode a batch in so many parts: less memory
    precision: Literal["bf16", "fp32"] = "bf16"
    engine: Literal["auto", "eager", "recorded"] = "auto"  # auto = recorded on a GPU, else eager
    # our own kernels for the encoder of a recorded step; auto = on a Hopper GPU, where they fit
    kernels: Literal["auto", "on", "off"] = "auto"
    device: str = "auto"
    log_every: int = Field(default=50, ge=1)
    validate_every: int = Field(default=1000, ge=1)
    checkpoint_every: int = Field(default=1000, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    diagnose_every: int = Field(default=0, ge=0)  # 0 = never; cosine between the terms' gradients
    trackers: tuple[str, ...] = ()  # beside metrics.jsonl: tensorboard, wandb, trackio


class Plan(Section):
    """Checkpoint to plans; changing these needs no retraining."""

    cost: Literal["content", "full", "angular", "progress"] = "content"
    pull: float = Field(default=0.0, ge=0)  # weight of the progress part in the content cost
    gamma: float = Field(default=1.0, ge=0)  # weight of the angle in the angular cost
    delta: float = Field(default=0.1, ge=0)  # weight of the radius in the angular cost
    scale: Literal["ref", "normalised"] = "ref"  # ref: raw sums, in which gamma = 1 is nearly inert
    when: Literal["last", "sum", "min"] = (
        "last"  # cost at the horizon's end, along it, or its least
    )
    solver: Literal["cem", "icem", "mppi", "gradient"] = "cem"
    candidates: int = Field(default=300, ge=2)
    elites: int = Field(default=30, ge=2)
    iterations: int = Field(default=30, ge=1)
    seconds: float = Field(default=0.0, ge=0)  # > 0: search this long per task instead
    initial_std: float = Field(default=1.0, gt=0)  # in normalised action space
    # cem, mppi: of a candidate's noise from one action to the next; recorded actions have some
    correlation: float = Field(default=0.0, ge=0, lt=1)
    correlated: float = Field(default=1.0, ge=0, le=1)  # share of candidates it holds for
    colour: float = Field(default=2.0, ge=0)  # icem: exponent of the noise's spectrum; 0 = white
    keep: float = Field(default=0.3, ge=0, le=1)  # icem: share of elites carried to the next round
    decay: float = Field(default=1.25, ge=1)  # icem: candidates shrink by this every round
    momentum: float = Field(default=0.1, ge=0, lt=1)  # icem: weight of the previous mean and std
    temperature: float = Field(default=1.0, gt=0)  # mppi: in units of the elites' spread of cost
    step_size: float = Field(default=0.1, gt=0)  # gradient: Adam's
    horizon: int = Field(default=5, ge=1)  # action blocks
    replan: int = Field(default=5, ge=1)  # blocks executed before the next plan
    ahead: Literal["fixed", "shrink"] = "shrink"  # shrink: the horizon's end stays where it was set
    warm_start: bool = True  # begin from what the last plan left unexecuted
    history: int = Field(default=1, ge=1)  # latents of the past the predictor is given
    bounds: Literal["none", "clip"] = "none"  # clip: candidates stay inside the action space
    effort: float = Field(default=0.0, ge=0)  # weight of the squares of a plan's normalised actions
    batch: int = Field(default=0, ge=0)  # tasks planned together on a GPU; 0 = as many as fit
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"  # of the rollout, on a GPU
    # auto: graph on a GPU, else eager; graph: a round is one CUDA graph; compile: fused as well
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"
    seed: int = 42

    @model_validator(mode="after")
    def _check(self) -> "Plan":
        if self.elites > self.candidates:
            raise ValueError("plan.elites exceeds plan.candidates")
        if self.replan > self.horizon:
            raise ValueError("plan.replan exceeds plan.horizon: there is nothing left to execute")
        return self


# Settings of `plan` that say how it is computed, not what is looked for.
PLAN_MEANS = {"seed", "batch", "precision", "engine"}
# What a protocol says unless a recipe or a flag says otherwise; the rest of it is in score.py.
PROTOCOL_TASKS = {"lewm": 50, "strict": 200, "choose": 100}
BUDGET_PER_OFFSET = 2


class Score(Section):
    """Plans to scores; tasks and budget are the protocol's unless they are given."""

    protocol: Literal["lewm", "strict", "choose"] = "lewm"  # choose: on validation episodes
    tasks: int = Field(default=50, ge=1)
    offset: int = Field(default=25, ge=1)  # environment steps from start to goal as recorded
    budget: int = Field(default=50, ge=1)  # environment steps a task may take
    seed: int = 42
    workers: int = Field(default=1, ge=0)  # simulating processes; 1 = this one, 0 = one per core

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, said: Any) -> Any:
        if not isinstance(said, dict):
            return said
        tasks = PROTOCOL_TASKS.get(said.get("protocol", "lewm"), 50)
        offset = said.get("offset", 25)
        budget = BUDGET_PER_OFFSET * offset if isinstance(offset, int) and offset > 0 else 50
        return {"tasks": tasks, "budget": budget} | said


class Compass(Section):
    """What the latent knows."""

    split: Literal["train", "validation", "test"] = "test"
    episodes: int = Field(default=40, ge=1)
    seed: int = 0


class Config(Section):
    """The whole configuration; `rung` names the preset it equals, or says how it departs."""

    rung: str = "A2"
    collect: Collect = Collect()
    data: Data = Data()
    model: Model = Model()
    objectives: Objectives = Objectives()
    train: Train = Train()
    plan: Plan = Plan()
    score: Score = Score()
    compass: Compass = Compass()

    @model_validator(mode="after")
    def _check(self) -> "Config":
        o, k = self.objectives, self.model.k
        if o.triplet_weight > 0 and o.triplet_on == "progress" and k < 2:
            raise ValueError("objectives.triplet_on = progress needs model.k >= 2")
        for term in ("prototype", "first_anchor", "progress_head"):
            if getattr(o, f"{term}_weight") > 0 and k < 2:
                raise ValueError(f"objectives.{term}_weight > 0 needs model.k >= 2")
        if (o.progress_head_weight > 0) != self.model.progress_head:
            raise ValueError(
                "model.progress_head and objectives.progress_head_weight > 0 go together"
            )
        if o.straighten_on == "progress" and o.straighten_weight > 0 and k < 2:
            raise ValueError("objectives.straighten_on = progress needs model.k >= 2")
        if self.plan.cost in ("angular", "progress") and k < 2:
            raise ValueError(f"plan.cost = {self.plan.cost} needs model.k >= 2")
        frames = self.data.window_frames
        if o.rollout_weight > 0 and o.rollout_blocks >= frames:
            raise ValueError(
                f"objectives.rollout_blocks = {o.rollout_blocks} needs data.window_frames > "
                f"{o.rollout_blocks}, found {frames}"
            )
        return self
