"""Notebooks, run cell by cell. As a program, it writes what they show into the notebooks of docs/.

Each has its own folder and namespace, and needs no Jupyter.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def read(notebook):
    return json.loads(Path(notebook).read_text(encoding="utf-8"))


def execute(notebook, folder):
    """The notebook with new outputs; the first error in a cell ends it, as an error."""
    document, names, count = read(notebook), {"__name__": "__main__"}, 0
    back = Path.cwd()
    os.chdir(folder)
    try:
        for cell in document["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell |= {"execution_count": count, "outputs": _outputs("".join(cell["source"]), names, count)}
    finally:
        os.chdir(back)
    return document


def _outputs(source, names, count):
    """What is printed, and what the last expression shows."""
    body, last = ast.parse(source).body, None
    if body and isinstance(body[-1], ast.Expr):
        last = ast.Expression(body.pop().value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(last, "cell", "eval"), names) if last else None
    outputs = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        shown = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
        outputs.append(shown | {"data": _shown(value)})
    return outputs


def _shown(value):
    """As a notebook shows it: a picture, a table, or its text."""
    if type(value).__module__.startswith("altair"):
        import vl_convert

        picture = base64.b64encode(vl_convert.vegalite_to_png(value.to_dict(validate=False))).decode()
        return {"image/png": picture, "text/plain": ["a chart"]}
    html = getattr(value, "_repr_html_", None)
    rich = {"text/html": html().splitlines(keepends=True)} if html else {}
    return rich | {"text/plain": repr(value).splitlines(keepends=True)}


def write(notebook):
    with tempfile.TemporaryDirectory() as folder:
        document = execute(notebook, folder)
    notebook.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for asked in map(Path, sys.argv[1:] or NOTEBOOKS):
        write(asked.resolve())
