"""inspect-ai with its OpenAI provider, unmodified, against `polydraft serve` with the demo pair.

python3 inspect_client.py path/to/polydraft
"""

import os
import sys
import tempfile

from serving import serving


def main():
    with serving(sys.argv[1]) as url, tempfile.TemporaryDirectory() as logs:
        os.environ |= {"OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": url}
        from inspect_ai import Task, eval
        from inspect_ai.dataset import Sample
        from inspect_ai.scorer import match
        from inspect_ai.solver import generate

        task = Task(dataset=[Sample(input="fn main", target="{")], solver=[generate()], scorer=match())
        log = eval(task, model="openai/target", max_tokens=16, log_dir=logs, display="none")[0]
        assert log.status == "success", log.error
    print("inspect-ai: passed")


main()
