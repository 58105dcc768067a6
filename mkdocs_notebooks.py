"""Notebooks as pages of the site: their text, code and what it showed, as they were executed and stored."""

import html
import json

from mkdocs.structure.files import File, Files


class Notebook(File):
    """A page that is written as a notebook."""

    def is_documentation_page(self):
        return True

    @property
    def content_string(self):
        with open(self.abs_src_path, encoding="utf-8") as file:
            return as_markdown(json.load(file))


def on_files(files, config):
    """Every notebook in place of its file."""
    pages = (Notebook, config.docs_dir, config.site_dir, config.use_directory_urls)
    kept = [pages[0](one.src_uri, *pages[1:]) if one.src_uri.endswith(".ipynb") else one for one in files]
    return Files(kept)


def as_markdown(notebook):
    """Cells in their order; what a cell showed stands below it."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [f"```python\n{source}\n```", *map(_shown, cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def _shown(output):
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in data:
        words = html.escape(data["text/plain"], quote=True)
        return f'<img alt="{words}" src="data:image/png;base64,{data["image/png"]}">'
    if "text/html" in data:
        return f'<div class="output">\n{data["text/html"]}\n</div>'
    return f"```text\n{data.get('text/plain') or ''.join(output.get('text', []))}\n```"
