"""Small files that several drivers write: the first stays, a later one may replace it, and no half of one is seen."""

from headwise.store.notes import keep
from headwise.training.machine import process_name


def test_the_first_one_stays_unless_it_is_replaced(tmp_path):
    file = tmp_path / "new" / "plan.json"
    assert keep(file, "one") == "one"
    assert keep(file, "another driver's") == "one"
    assert keep(file, "two", replace=True) == file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]


def test_what_killed_processes_left_is_removed(tmp_path):
    host, boot, _, _ = process_name(1).split("-")
    gone, elsewhere = tmp_path / f"x.json.{host}-{boot}-1-1.partial", tmp_path / "y.json.0-0-1-1.partial"
    for file in (gone, elsewhere):
        file.touch()
    keep(tmp_path / "plan.json", "text")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plan.json", elsewhere.name]


def test_a_system_without_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    assert keep(tmp_path / "plan.json", "one") == "one"
    assert keep(tmp_path / "plan.json", "two") == "one"
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]
