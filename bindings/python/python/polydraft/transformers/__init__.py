"""polydraft inside Hugging Face transformers.

    model.generate(**inputs, custom_generate=polydraft.transformers.generate, assistant_model=draft)

Needs torch and transformers (4.57 or newer).
"""

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as missing:
    message = f"polydraft.transformers needs torch and transformers: pip install 'polydraft[transformers]' ({missing})"
    raise ImportError(message, name=missing.name) from missing

from .generate import generate
from .scoring import takes_trees
from .static import release, takes_static

__all__ = ["generate", "release", "takes_static", "takes_trees"]
