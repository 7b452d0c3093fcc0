"""The tree reads as the path data takes: a stage imports only from stages to its left."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sdjepa"
GROUND = (
    *("errors", "interrupts", "seeds", "config", "resolve", "runs", "crew", "ranks", "explain"),
    "quarrels",
)
STAGES = (
    "envs",
    "data",
    "model",
    "objectives",
    "train",
    "plan",
    "score",
    "compass",
    "report",
    "watch",
    "interop",
    "cli",
)
# Pieces of a stage that stand beside its package, and what belongs to the command line.
BESIDE = {
    "statistics": "ground",
    "tasks": "plan",
    "scoring": "score",
    "compare": "score",
    "bench": "cli",
    "ledger": "cli",
    "claims": "cli",
    "demo": "cli",
    "doctor": "cli",
    "__main__": "cli",
    "__init__": "ground",
}


def stage_of(module: str) -> str:
    name = module.split(".")[1] if "." in module else "__init__"
    if name in GROUND:
        return "ground"
    return BESIDE.get(name, name)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sdjepa"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("sdjepa.")}
    return found


def rank(stage: str) -> int:
    return -1 if stage == "ground" else STAGES.index(stage)


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_stage_imports_only_from_its_left(path: Path):
    relative = path.relative_to(SOURCE.parent).with_suffix("")
    own = rank(stage_of(".".join(relative.parts)))
    if path == SOURCE / "__init__.py":
        own = rank("cli")  # the package's front door opens onto everything, when it is asked to
    for imported in imports(path):
        # `from sdjepa import ranks` names a module, `from sdjepa.ranks import total` its part.
        assert rank(stage_of(imported)) <= own, f"{path} imports {imported}"


def test_environments_are_named_only_where_they_live():
    for path in FILES:
        if "envs" in path.parts or path.name == "config.py":
            continue
        code = re.sub(r'"""[\s\S]*?"""|#.*', "", path.read_text())
        found = re.search(r"tworoom|pusht|reacher|ogbench|\bcube\b", code, re.IGNORECASE)
        assert found is None, f"{path} names {found and found.group()}"


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom sdjepa.cli import app\n"
        "print([m for m in ('torch', 'numpy', 'pydantic', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
