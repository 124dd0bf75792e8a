"""Real coding agents against ``mlxgen.server``, on a model that says what a script has it say."""
