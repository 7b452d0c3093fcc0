"""Every command the README and the docs show really runs, in order, in an empty directory."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> list[list[str]]:
    """The lines of the page's sh blocks, continued lines joined, comments dropped."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page: Path, sdjepa, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in commands(page):
        if words[0] == "sdjepa":
            code, _, err = sdjepa(*words[1:])
            assert code == 0, f"{' '.join(words)}\n{err}"
        elif words[0] == "make":
            assert words[1] in targets
        elif words[0] == "source":
            assert words[1] == ".venv/bin/activate"
        else:
            pytest.fail(f"{page.name} shows a command no test knows how to run: {words}")
    for block in re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(page), "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_names_every_verb_and_no_other():
    import typer.main

    from sdjepa.cli import app

    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    named = set(re.findall(r"`sdjepa (\w+)", (ROOT / "README.md").read_text())) - {"VERB"}
    assert named == verbs
