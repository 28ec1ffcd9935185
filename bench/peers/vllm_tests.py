#!/usr/bin/env python3
"""vLLM's own tests of its OpenAI-compatible server against `polydraft serve`.

  bench/peers/vllm_tests.py --source DIR --model smollm2.gguf --tokenizer DIR \\
      --chat-template FILE [--polydraft target/release/polydraft] [-k EXPRESSION] [-o RECORD]

--source is vLLM's source package, --tokenizer a folder with the model's tokenizer as transformers
reads it, --chat-template one that knows of tools, as the models that the tests name have
(llama.cpp's models/templates/Qwen-Qwen3-0.6B.jinja). Needs pytest, pytest-asyncio, openai,
anthropic, requests, jsonschema, regex and transformers; vLLM itself is not needed. Tests of routes
that are not here, and of vLLM's own modules, are counted apart. Each other failure needs its reason
in vllm_reasons.json. Exit code 1 if one has none.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import peers

FILES = """
    openai/chat_completion/test_chat.py
    openai/chat_completion/test_chat_completion.py
    openai/chat_completion/test_chat_echo.py
    openai/chat_completion/test_chat_logit_bias_validation.py
    openai/chat_completion/test_completion_with_function_calling.py
    openai/chat_completion/test_enable_force_include_usage.py
    openai/chat_completion/test_logprob_token_ids.py
    openai/chat_completion/test_root_path.py
    openai/completion/test_completion.py
    openai/completion/test_prompt_validation.py
    openai/models/test_models.py
    openai/responses/test_simple.py
    openai/test_chunked_prompt.py
    openai/test_return_token_ids.py
    openai/test_return_tokens_as_ids.py
    anthropic/test_messages.py
    serve/tokenize/test_tokenization.py
    serve/instrumentator/test_basic.py
""".split()


def run(args):
    """The outcome of each test, the routes that it asked for, and why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder, "tests")
        for file in FILES:
            place = tests / "entrypoints" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(args.source / "tests" / "entrypoints" / file, place)
            # Conftests with fixtures; those of all tests are about GPUs.
            conftest = args.source / "tests" / "entrypoints" / Path(file).parent / "conftest.py"
            if conftest.exists():
                shutil.copy(conftest, place.parent)
        shutil.copy(args.source / "tests" / "entrypoints" / "conftest.py", tests / "entrypoints")
        shutil.copy(peers.HERE / "vllm_utils.py", tests / "utils.py")
        for package in (tests, *filter(Path.is_dir, list(tests.rglob("*")))):
            (package / "__init__.py").touch()
        env = {
            **os.environ,
            "PEERS_PROGRAM": str(Path(args.polydraft).resolve()),
            "PEERS_MODEL": str(Path(args.model).resolve()),
            "PEERS_TOKENIZER": str(args.tokenizer.resolve()),
            "PEERS_TEMPLATE": str(args.chat_template.resolve()),
            "PYTHONPATH": str(peers.HERE),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "vllm_plugin"]
        command += ["-p", "no:cacheprovider", *(f"tests/entrypoints/{file}" for file in FILES)]
        command += ["-k", args.expression] if args.expression else []
        return peers.noted(command, folder, env)


def main():
    parser = peers.options(__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder")
    parser.add_argument("--chat-template", type=Path, required=True, help="a file")
    args = parser.parse_args()
    known = peers.routes(args.polydraft, args.model)
    sys.exit(peers.report("vLLM", run(args), {}, known, "vllm_reasons.json", args.record))


if __name__ == "__main__":
    main()
