"""Executes the notebooks, and fails if a cell fails or its output differs from the stored one. With --write, stores the outputs.

python notebooks/run.py [--write]

Printed output is compared: words exactly, numbers to 1e-4 of their size or 1e-9. Figures are not, since they depend on fonts.
"""

import math
import pathlib
import re
import sys

import nbclient
import nbformat

NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


def printed(cell):
    """What a cell printed, and the text of its result; figures are left out."""
    outputs = [output for output in cell.get("outputs", []) if output.output_type != "display_data"]
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def agrees(stored, now):
    """Whether two outputs have the same words, and numbers that agree."""
    numbers = zip(NUMBER.findall(stored), NUMBER.findall(now))
    same_words = NUMBER.sub("#", stored).split() == NUMBER.sub("#", now).split()
    return same_words and all(math.isclose(float(a), float(b), rel_tol=1e-4, abs_tol=1e-9) for a, b in numbers)


def main():
    writes, differences = "--write" in sys.argv[1:], 0
    for path in sorted(pathlib.Path(__file__).parent.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        stored = [printed(cell) for cell in notebook.cells]
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
        for number, (before, cell) in enumerate(zip(stored, notebook.cells)):
            if not writes and not agrees(before, printed(cell)):
                differences += 1
                print(f"{path.name}, cell {number}: stored output:\n{before}\nnow:\n{printed(cell)}")
        if writes:
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)
            nbformat.write(notebook, path)
        print(f"{path.name}: {len(notebook.cells)} cells")
    if differences:
        sys.exit(f"{differences} outputs differ; python notebooks/run.py --write stores the new ones")


main()
