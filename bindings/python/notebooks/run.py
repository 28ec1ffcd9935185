"""Executes the notebooks and fails if a cell fails. With --write, stores the outputs in the files.

python notebooks/run.py [--write]
"""

import pathlib
import sys

import nbclient
import nbformat

for path in sorted(pathlib.Path(__file__).parent.glob("*.ipynb")):
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    if "--write" in sys.argv[1:]:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
    print(f"{path.name}: {len(notebook.cells)} cells")
