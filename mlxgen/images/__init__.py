"""Images in prompts: read from callers' input, and cut into patches. No MLX here."""

from .image import Image, ImageProcessor, Patch, plain
from .source import Address, Source

__all__ = ["Address", "Image", "ImageProcessor", "Patch", "Source", "plain"]
