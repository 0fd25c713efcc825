"""Job `redrive`: moves dead letters back."""
