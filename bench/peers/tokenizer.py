#!/usr/bin/env python3
"""Writes a GGUF file's tokenizer as a folder that transformers reads.

  bench/peers/tokenizer.py MODEL.gguf FOLDER

Needs transformers below 5 and gguf; torch, which transformers asks for, is not needed for that.
"""

import sys
from pathlib import Path

import transformers
import transformers.modeling_gguf_pytorch_utils as reader

if len(sys.argv) != 3:
    sys.exit(__doc__)
reader.is_torch_available = lambda: True
model = Path(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name, add_bos_token=False)
# It puts the begin token before every text, whatever the file says.
tokenizer.add_bos_token = False
tokenizer.update_post_processor()
tokenizer.save_pretrained(sys.argv[2])
