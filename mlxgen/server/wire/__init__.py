"""From JSON bodies to the engine's options, and from its chunks to JSON. No input or output.

What the rest of the server uses of it is in ``mlxgen.server.calls``.
"""
