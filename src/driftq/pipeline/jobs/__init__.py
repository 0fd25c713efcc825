"""The jobs of the pipeline, and the code that they share."""
