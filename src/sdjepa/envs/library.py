"""The one door to stable-worldmodel: a module path comes in, the imported module goes out.

Importing the package whole takes ten seconds and a gigabyte, because its `__init__` files pull in
datasets, models and solvers; an environment needs none of that. `load` imports the one module with
its parent packages standing in as empty shells, then takes the shells away again: whoever imports
the real package afterwards gets the real package.
"""

import importlib
import importlib.machinery
import sys
import types

from sdjepa.errors import UserError

PACKAGE = "stable_worldmodel"
_loaded: dict[str, types.ModuleType] = {}


def load(module: str) -> types.ModuleType:
    """`stable_worldmodel.<module>`, without the rest of the package where that is possible."""
    if module not in _loaded:
        try:
            _quieten()
            if PACKAGE in sys.modules:
                _loaded[module] = importlib.import_module(f"{PACKAGE}.{module}")
            else:
                _loaded[module] = _load_alone(module)
        except ModuleNotFoundError as error:
            raise UserError(
                f"the simulators need the package {error.name!r}, which is not installed; "
                "run: pip install 'sdjepa[envs]'"
            ) from error
    return _loaded[module]


def _quieten() -> None:
    """Gymnasium warns at every step about spaces that are the simulators' own."""
    import gymnasium

    gymnasium.logger.min_level = gymnasium.logger.ERROR


def _load_alone(module: str) -> types.ModuleType:
    full = f"{PACKAGE}.{module}"
    parents = [full.rsplit(".", n)[0] for n in range(full.count("."), 0, -1)]
    try:
        for parent in parents:
            sys.modules[parent] = _shell(parent)
        importlib.import_module(f"{PACKAGE}.utils")  # `spaces` reaches it through the package
        return importlib.import_module(full)
    except (ImportError, AttributeError):
        # Another release may lean on what its `__init__` does: take the slow, ordinary way.
        _forget()
        return importlib.import_module(full)
    finally:
        if parents and isinstance(sys.modules.get(PACKAGE), _Shell):
            _forget()


class _Shell(types.ModuleType):
    """A package with a search path and nothing in it."""


def _shell(name: str) -> _Shell:
    parent, _, leaf = name.rpartition(".")
    path = list(sys.modules[parent].__path__) if parent else None
    spec = importlib.machinery.PathFinder.find_spec(leaf, path)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    shell = _Shell(name)
    shell.__path__ = list(spec.submodule_search_locations)
    return shell


def _forget() -> None:
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
