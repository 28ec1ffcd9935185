"""Fetches the chat templates of llama.cpp from the source of llama-cpp-python 0.3.36.

fetch_templates.py FOLDER"""

import pathlib
import sys
import tarfile

from pip._internal.commands import create_command

VERSION = "0.3.36"


def main():
    folder = pathlib.Path(sys.argv[1])
    # pip would build the package before it keeps its source, so its own classes fetch it.
    command = create_command("download")
    options, _ = command.parse_args(["--no-deps", "llama-cpp-python"])
    with command.main_context():
        session = command.get_default_session(options)
        found = command._build_package_finder(options, session).find_all_candidates("llama-cpp-python")
        [link] = [one.link for one in found if str(one.version) == VERSION and one.link.filename.endswith(".tar.gz")]
        package = folder / link.filename
        package.write_bytes(session.get(link.url_without_fragment).content)
    with tarfile.open(package) as files:
        for file in files:
            if "/models/templates/" in file.name and file.name.endswith(".jinja"):
                (folder / pathlib.Path(file.name).name).write_bytes(files.extractfile(file).read())


main()
