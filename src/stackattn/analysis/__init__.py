"""Looking at what a stack did: pictures of attention weights. They need the extra `plot`, imported when drawing."""

from .attention_map import attention_map

__all__ = ["attention_map"]
