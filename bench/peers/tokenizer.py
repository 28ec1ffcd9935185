#!/usr/bin/env python3
"""Writes a GGUF file's tokenizer as a folder that transformers reads.

  bench/peers/tokenizer.py MODEL.gguf FOLDER

Needs transformers below 5 and gguf; torch, which transformers asks for, is not needed for that.
"""

from pathlib import Path

import peers
import transformers
import transformers.modeling_gguf_pytorch_utils as reader

parser = peers.harness.options(__doc__)
parser.add_argument("model", type=Path, help="a GGUF file")
parser.add_argument("folder", help="where the tokenizer goes")
args = parser.parse_args()
reader.is_torch_available = lambda: True
named = {"gguf_file": args.model.name, "add_bos_token": False}
tokenizer = transformers.AutoTokenizer.from_pretrained(args.model.parent, **named)
# It puts the begin token before every text, whatever the file says.
tokenizer.add_bos_token = False
tokenizer.update_post_processor()
tokenizer.save_pretrained(args.folder)
