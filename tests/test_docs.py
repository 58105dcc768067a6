"""The site: every page is in the contents, every link leads somewhere, every command exists with its options."""

import re
from pathlib import Path

import pytest

from helpers import documents

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BUILT = {"explorer.html"}  # by `make docs`


def names(pages):
    return [str(page.relative_to(DOCS)) for page in pages]


def test_every_page_is_in_the_contents_once():
    listed = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(names(PAGES))


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
