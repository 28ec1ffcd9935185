"""guidellm with its default load, unmodified, against `polydraft serve` with the demo pair.

python3 guidellm_client.py path/to/polydraft [path/to/guidellm]

Its sweep sends one request at a time, then 512 at once, then at rates in between. No request may fail.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from serving import serving

DEMO = Path(__file__).resolve().parents[3] / "demo"
SECONDS = 10


def main():
    guidellm = sys.argv[2] if len(sys.argv) > 2 else str(Path(sys.executable).with_name("guidellm"))
    with serving(sys.argv[1]) as url, tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "benchmarks.json")
        backend = f"kind=openai_http,target={url.removesuffix('/v1')},api_key=secret"
        command = [
            guidellm, "run", "--profile", "kind=sweep", "--backend", backend,
            "--tokenizer", f"kind=huggingface_auto,model={DEMO / 'target'}",
            "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32",
            "--constraint", f"kind=max_duration,seconds={SECONDS}",
            "--output", f"kind=json,path={report}", "--disable-progress",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for benchmark in json.loads(report.read_text())["benchmarks"]:
            requests = {kind: len(all) for kind, all in benchmark["requests"].items() if isinstance(all, list)}
            assert requests["successful"] > 0 and requests["errored"] == 0, requests
            print("guidellm:", requests)
    print("guidellm: passed")


if __name__ == "__main__":
    main()
