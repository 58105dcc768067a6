"""The site: every page is in the contents, every link leads somewhere, every command exists with its options."""

import re
from pathlib import Path

import pytest

from helpers import documents, notebooks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BUILT = {"explorer.html"}  # by `make docs`


def names(pages):
    return [str(page.relative_to(DOCS)) for page in pages]


def test_every_page_is_in_the_contents_once():
    listed = re.findall(r": ([\w/.-]+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(names([*PAGES, *notebooks.NOTEBOOKS]))


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert target in BUILT or file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("line", [pytest.param(line, id=f"{page}: {line[:60]}") for page, line in documents.commands()])
def test_commands_exist_with_their_options(line):
    assert documents.wrong(line) == ""


def test_a_wrong_command_is_told_from_a_right_one():
    assert documents.wrong("headwise study run rank-cliff --preset smoke  # seconds") == ""
    assert documents.wrong("headwise study walk rank-cliff") == "there is no command walk"
    assert documents.wrong("headwise cost gpt2 --colour=red") == "it has no --colour"


# ---- notebooks -----------------------------------------------------------------------------------------------------


def cells(notebook):
    return [cell for cell in notebooks.read(notebook)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", notebooks.NOTEBOOKS, ids=names(notebooks.NOTEBOOKS))
def test_notebooks_were_executed_and_link_somewhere(notebook):
    assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    assert sum(bool(cell["outputs"]) for cell in cells(notebook)) > 5
    for cell in notebooks.read(notebook)["cells"]:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]*)", "".join(cell["source"])):
            assert cell["cell_type"] == "code" or (notebook.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("notebook", notebooks.NOTEBOOKS, ids=names(notebooks.NOTEBOOKS))
def test_notebooks_run_and_show_the_same_kinds_of_things(notebook, tmp_path):
    """With a store of their own; numbers may differ between machines, what is shown may not."""
    again = notebooks.execute(notebook, tmp_path)
    new = [cell for cell in again["cells"] if cell["cell_type"] == "code"]

    def kinds(cell):
        return [sorted(output.get("data", {"stream": 0})) for output in cell["outputs"]]

    assert [kinds(cell) for cell in new] == [kinds(cell) for cell in cells(notebook)]
