"""Records in frames."""
