"""Plans know a sequence's length from its task, and read no data for it."""

from headwise.studies import load_all
from headwise.sweep.tokens import sample_tokens
from headwise.tasks.images import Images
from headwise.tasks.lra import LongRangeArena


def test_pricing_every_preset_reads_no_data(monkeypatch):
    """A price must not wait for a download."""
    asked = []
    monkeypatch.setattr(Images, "images", asked.append)
    monkeypatch.setattr(LongRangeArena, "_images", property(asked.append))
    for study in load_all():
        for preset in study.presets:
            runs = [cell.run for cell in study.of(preset)[:40]]
            assert all(sample_tokens(run) > 0 for run in runs if run.steps)
    assert not asked
