"""What the package says of where it comes from: addresses that only the place it is released from knows.

GITHUB_REPOSITORY (owner/name, as GitHub's own workflows set it) gives the project's URLs and makes the README's links
absolute, so that its picture shows on an index. Without it there are no URLs and the README stays as it is.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LOCAL = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|#|mailto:)([^)\s]+)(\))")


class Addresses(MetadataHookInterface):
    """Fills in `urls` and `readme`."""

    def update(self, metadata):
        repository = os.environ.get("GITHUB_REPOSITORY", "")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = urls(repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}


def urls(repository):
    home = f"https://github.com/{repository}"
    places = {
        "Homepage": "",
        "Issues": "/issues",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Documentation": "/tree/main/docs",
    }
    return {name: home + place for name, place in places.items()} if repository else {}


def absolute(text, repository):
    """Pictures from where they lie as files, links to where they are shown."""
    if not repository:
        return text

    def replaced(match):
        opening, target, closing = match.groups()
        place = "raw" if opening.startswith("!") else "blob"
        return f"{opening}https://github.com/{repository}/{place}/main/{target}{closing}"

    return LOCAL.sub(replaced, text)
