"""stable-worldmodel's own LeWM at our widths, to be measured against."""

import functools
import importlib
from typing import Any

from torch import nn

from sdjepa.config import Model
from sdjepa.interop.lewm_keys import lewm_config


def instantiate(node: Any) -> Any:
    """Build the object a `_target_` tree names, as hydra would."""
    if not isinstance(node, dict):
        return node
    built = {name: instantiate(value) for name, value in node.items()}
    if "_target_" not in built:
        return built
    module, _, name = built.pop("_target_").rpartition(".")
    target = getattr(importlib.import_module(module), name)
    if built.pop("_partial_", False):
        return functools.partial(target, **built)
    return target(**built)


def make_lewm(config: Model) -> tuple[nn.Module, nn.Module]:
    """Their world model and their SIGReg, newly initialised."""
    from stable_worldmodel.wm.loss import SIGReg

    return instantiate(lewm_config(config)), SIGReg()
