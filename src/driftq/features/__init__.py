"""Features on top of the engine, one package each. No feature imports another."""
