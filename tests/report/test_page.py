"""The page: well formed, alone in the world, and true to the rows. Read back with the standard library's parsers."""

import base64
import hashlib
import json
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scipy import stats

from headwise import studies
from headwise.ledger.claims import Claim
from headwise.ledger.judge import Judgement
from headwise.report.page import MOST_METRICS, render, write_page
from headwise.report.sections import Section, sections_of
from headwise.spec import SpecError
from headwise.store.store import Store
from helpers.commands import as_json, headwise, headwise_process
from helpers.pages import EVIL, fill

VOID = {"meta", "img", "br", "hr", "input", "link"}
SLOW = "gaussian-heads"  # computes its claim for seconds; in the slow test


class Element:
    def __init__(self, name, attributes=(), parent=None):
        self.name, self.attributes, self.parent = name, dict(attributes), parent
        self.parts = []  # elements and text

    def __iter__(self):
        """This element and everything in it."""
        yield self
        for part in self.parts:
            if isinstance(part, Element):
                yield from part

    def all(self, name, **wanted):
        wanted = {key.rstrip("_"): value for key, value in wanted.items()}
        return [e for e in self if e.name == name and wanted.items() <= e.attributes.items()]

    def one(self, name, **wanted):
        (found,) = self.all(name, **wanted)
        return found

    @property
    def text(self):
        return "".join(part.text if isinstance(part, Element) else part for part in self.parts)

    @property
    def words(self):
        return " ".join(self.text.split())


class Tree(HTMLParser):
    """Every element must be closed by its own end tag, and attributes must not repeat."""

    def __init__(self, text):
        super().__init__()
        self.root = self.at = Element("document")
        self.feed(text)
        self.close()
        assert self.at is self.root, f"<{self.at.name}> is never closed"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), attrs
        element = Element(tag, attrs, self.at)
        self.at.parts.append(element)
        self.at = self.at if tag in VOID else element

    def handle_endtag(self, tag):
        assert tag == self.at.name, f"</{tag}> ends <{self.at.name}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.parts.append(data)


def page_of(names, store):
    return render(list(sections_of([studies.load(name) for name in names], store)), [], EVIL)


@pytest.fixture(scope="module")
def text():
    """One study with runs, one without."""
    with Store(":memory:") as held:
        fill(held)
        return page_of(["rank-cliff", "in-context"], held)


@pytest.fixture(scope="module")
def page(text):
    return Tree(text).root


@pytest.fixture(scope="module")
def whole():
    """Every study, but for the one that computes for seconds; no runs."""
    with Store(":memory:") as empty:
        return Tree(page_of([name for name in studies.names() if name != SLOW], empty)).root


@pytest.fixture(scope="module")
def cliff(page):
    return page.one("section", id="rank-cliff")


# ---- the file ------------------------------------------------------------------------------------------------------


def test_it_refers_to_nothing_outside(page, text):
    ids = [element.attributes["id"] for element in page if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    for element in page:
        for name in ("href", "src", "action", "data", "srcset", "poster", "xlink:href", "background"):
            address = element.attributes.get(name, "#ledger")
            assert address.removeprefix("#") in ids or address.startswith("data:image/svg+xml;base64,")
        assert not {"style", *(name for name in element.attributes if name.startswith("on"))} & set(element.attributes)
    assert not {"link", "iframe", "object", "embed", "base"} & {element.name for element in page}
    assert not re.search(r"url\(|@import|https?:", page.one("style").text + scripts(page)[-1] + scripts(page)[-2])
    assert text.startswith("<!DOCTYPE html>")


def scripts(page):
    """What is run: Vega's libraries, what draws charts with them, and the page's own."""
    return [element.text for element in page.all("script") if "type" not in element.attributes]


def test_its_policy_allows_its_own_style_and_scripts_alone(page):
    """Hashes made here, of what a browser would hash."""
    policy = page.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"].split("; ")
    for name, texts in (("style", [page.one("style").text]), ("script", scripts(page))):
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert " ".join([f"{name}-src", *(f"'sha256-{one}'" for one in hashes)]) in policy
    assert set(policy) > {"default-src 'none'", "img-src data:"}
    assert len(policy) == 4


def test_html_in_a_run_is_text(page, cliff):
    assert len(scripts(page)) == 3
    assert EVIL in page.one("header").text
    assert f"chip {EVIL}" in cliff.text
    assert EVIL in cliff.all("ul", class_="bad")[0].text
    assert EVIL in [cell.text for cell in cliff.all("th")]
    assert all("onerror" not in element.attributes for element in page)


# ---- the ledger ----------------------------------------------------------------------------------------------------


def ledger(page):
    body = page.one("table", class_="ledger").one("tbody")
    return {row.one("th").text: row for row in body.all("tr")}


def test_every_claim_is_there(whole):
    stated = [claim for name in studies.names() if name != SLOW for claim in studies.load(name).all_claims]
    rows = ledger(whole)
    assert set(rows) == {claim.id for claim in stated}
    for name, row in rows.items():
        shown = [claim for claim in stated if claim.id == name and claim.claim in row.text]
        assert row.one("a").attributes["href"] in {f"#{claim.study}" for claim in shown}
        assert row.attributes == {"data-verdict": row.one("span").text, "data-source": name[0]}


def test_claims_of_any_letters_have_their_place():
    ids = ["Q1", "AB12", "X1"]
    judgements = [
        Judgement(Claim(name, f"claim {name}", "mine", "mine", lambda rows: []), "open", "laptop") for name in ids
    ]
    found = Tree(render([Section("mine", "My study.", judgements, [])], [], "")).root
    assert list(ledger(found)) == ids
    assert [option.text for option in found.one("select", id="source").all("option")[1:]] == [
        "Q: rank (1)",
        "AB: other (1)",
        "X: other (1)",
    ]


def test_claims_are_in_order(whole):
    names = list(ledger(whole))
    assert names == sorted(names, key=lambda name: ("QNL".index(name[0]), int(name[1:])))
    first = [section.all("b")[0].text for section in whole.all("section", class_="study")]
    places = [names.index(name) for name in first]  # a claim may have an older study beside its registered one
    assert places == sorted(places)
    assert len(set(first)) > 20


def test_verdicts_and_numbers_are_those_of_the_rows(page, whole):
    """An invented world: 0.6 over 0.02 in every seed."""
    rows = ledger(page)
    assert {name: row.one("span").text for name, row in rows.items()} == {
        "Q7": "holds",
        "Q8": "holds",
        "Q9": "holds",
        "Q14": "open",
        "Q21": "open",
    }
    effect, required = (rows["Q7"].one("td", **{"data-label": name}).text for name in ("effect", "required"))
    assert (effect, required) == ("30× [30×, 30×]published 20×", "at least 2×")
    assert [rows["Q14"].one("td", **{"data-label": name}).text for name in ("effect", "required")] == ["", ""]
    certain = ledger(whole)["Q3"]  # proved: it takes no runs
    assert (certain.one("span").text, certain.one("td", **{"data-label": "effect"}).text) == ("holds", "3.00 exact")


def test_every_comparison_of_a_claim_stands_with_its_study(cliff):
    first = cliff.one("ul", class_="claims").all("li")[0]
    lines = [line.words for line in first.all("small", class_="line")]
    assert lines[0].startswith("64 times the heads, of rank 8 vs one head of rank 16: test error 30×")
    assert lines[1].startswith("one head of rank 16 vs a constant predictor: test error")
    assert [line.rpartition(" ")[2] for line in lines[:2]] == ["yes", "yes"]


def test_the_filter_offers_what_there_is(whole):
    rows = ledger(whole).values()
    for name in ("verdict", "source"):
        counts = Counter(row.attributes[f"data-{name}"] for row in rows)
        options = whole.one("select", id=name).all("option")
        assert {option.attributes["value"] for option in options} >= {"", *counts}
        for option in options[1:]:
            assert option.text.endswith(f"({counts[option.attributes['value']]})")


# ---- studies -------------------------------------------------------------------------------------------------------


def test_a_study_without_rows_says_so_and_gives_its_command(whole):
    for section in whole.all("section", class_="study"):
        name = section.attributes["id"]
        preset = "desktop" if studies.load(name).registered else "laptop"
        assert f"headwise study run {name} --preset {preset}" in [code.text for code in section.all("code")]
        assert "No finished runs here yet" in section.text
        assert not section.all("img")


def test_cells_have_means_and_students_intervals(cliff):
    table = cliff.all("table")[0]
    heads = [head.text for head in table.one("thead").all("th")]
    assert heads[:5] == ["dim", "rank", "multiplier", "depth", "seeds"]
    lines = table.one("tbody").all("tr")
    assert len(lines) == len({tuple(cell.place.items()) for cell in studies.load("rank-cliff").of("laptop")})
    line = next(line for line in lines if [e.text for e in line.all("th")] == ["16", "16", "1", "1"])
    cell = line.all("td")[heads.index("error") - 4]
    errors = [0.02, 0.0202, 0.0204]
    low, high = stats.t.interval(0.95, 2, loc=0.0202, scale=stats.sem(errors))
    assert cell.text == f"0.0202{low:.4g} to {high:.4g}"
    assert line.all("td")[0].text == "3"


def test_what_never_differs_and_what_does_not_fit_is_said_below(cliff):
    heads = {head.text for head in cliff.all("table")[0].all("th")}
    assert not {"error of a constant predictor", "parameters"} & heads
    notes = " ".join(note.words for note in cliff.all("p", class_="note"))
    assert "error of a constant predictor 2" in notes
    assert "parameters 1,234" in notes
    assert f"Not shown: 3 more metrics (probe-{MOST_METRICS - 3} to probe-{MOST_METRICS - 1})" in notes


def test_the_budget_adds_up(cliff):
    budget = cliff.all("dl")[0]
    found = {dt.text: dd.text for dt, dd in zip(budget.all("dt"), budget.all("dd"), strict=True)}
    assert found["runs"] == "35 of 36 done"
    assert found["training"] == "35 GFLOP"
    assert found["training time"] == "5.83 min, summed over runs"
    assert found["machine"] == f"chip {EVIL}, 2 cores, Linux, torch 2"


def test_the_deciding_preset_comes_first_and_others_after_it(cliff):
    commands = [code.text for code in cliff.all("code") if code.text.startswith("headwise")]
    assert commands == [f"headwise study run rank-cliff --preset {name}" for name in ("laptop", "published-size")]
    hidden = cliff.all("details")[0]
    assert hidden.one("summary").text == "The preset published-size"
    assert hidden.one("img")


def test_charts_are_pictures_of_the_rows(cliff):
    assert len(cliff.all("img")) == 2
    for image in cliff.all("img"):
        svg = base64.b64decode(image.attributes["src"].partition(",")[2])
        words = {element.text for element in ElementTree.fromstring(svg).iter() if element.text}
        assert {"The rank cliff", "1 layer", "rank of each head"} <= words
        assert b"<script" not in svg
        assert "x: rank of each head. y: test error (squared distance)." in image.attributes["alt"]


def test_the_chart_that_decides_says_in_its_title_what_became_of_a_claim(page, cliff):
    decided, other = cliff.all("img")
    assert decided.attributes["alt"].startswith("Q7, holds: One layer: full rank is necessary and sufficient")
    assert "The rank cliff" in decided.attributes["alt"]
    assert other.attributes["alt"].startswith("The rank cliff")
    specs = json.loads(page.one("script", id="charts").text)
    assert [spec["description"] for spec in specs.values()] == [decided.attributes["alt"], other.attributes["alt"]]


# ---- the commands --------------------------------------------------------------------------------------------------


def test_a_page_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"cannot write .*index.html: .*; choose another place with --out"):
        write_page([], [], "", tmp_path / "file")


def test_an_earlier_page_is_replaced(tmp_path):
    for origin in ("first", "second"):
        page = write_page([], [], origin, tmp_path / "deep")
    assert "second" in page.read_text()
    assert [file.name for file in page.parent.iterdir()] == ["index.html"]


def test_open_shows_the_page_that_is_there(tmp_path):
    """A browser of ours that writes down what it was asked to open."""
    page = write_page([], [], "", tmp_path / "my page")
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{seen}"\n')
    browser.chmod(0o755)
    words = ("open", "--out", str(page.parent))
    done = headwise_process(*words, BROWSER=f"{browser} %s")
    assert seen.read_text().strip() == page.as_uri()
    assert done.stdout.strip() == str(page)
    seen.unlink()
    assert headwise(*words, "--no-browser").stdout.strip() == str(page)
    assert not seen.exists()
    nowhere = headwise_process(*words, "--json", BROWSER="")
    assert "no browser was found" in nowhere.stderr
    assert json.loads(nowhere.stdout) == {"page": str(page), "opened": False}


def test_wrong_parquet_files_are_a_sentence(tmp_path):
    done = headwise("report", "--from", "nowhere", check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "no runs in nowhere" in done.stderr


@pytest.mark.slow
def test_the_command_reads_stores_and_parquet_files_alike(tmp_path):
    with Store(tmp_path / "runs.db") as held:
        fill(held)
        held.export(tmp_path / "results" / "runs.parquet")
    settings = {"cwd": tmp_path, "OMP_NUM_THREADS": "1"}  # two of these processes may run at once
    said = as_json("report", "--from", "results", "--out", "page", **settings)
    assert {claim["id"] for claim in said["claims"]} == {c.id for s in studies.load_all() for c in s.all_claims}
    cliff = next(study for study in said["studies"] if study["name"] == "rank-cliff")
    assert cliff["presets"]["laptop"] == {"planned": 36, "done": 35}
    assert cliff["charts"] == 2
    assert next(study for study in said["studies"] if study["name"] == SLOW)["charts"] == 1
    path = headwise("open", "--no-browser", **settings, HEADWISE_STORE="runs.db").stdout.strip()
    assert path == os.fspath(tmp_path / "runs.report" / "index.html")
    pages = [Tree(Path(place).read_text()).root for place in (path, said["page"])]
    assert pages[0].one("main").words == pages[1].one("main").words
    assert [page.one("header").words.count("results") for page in pages] == [0, 1]
