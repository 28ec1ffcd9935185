"""polydraft inside Hugging Face transformers.

    model.generate(**inputs, custom_generate=polydraft.transformers.generate, assistant_model=draft)

Needs torch and transformers (4.57 or newer).
"""

from .generate import generate
from .scoring import takes_trees
from .static import release, takes_static

__all__ = ["generate", "release", "takes_static", "takes_trees"]
