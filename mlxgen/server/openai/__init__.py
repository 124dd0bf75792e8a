"""OpenAI's API, and what clients of local servers expect in addition: bodies in, JSON out.

From JSON bodies to the engine's options, and from its chunks to JSON. No input or output.
"""
