"""Job `redrive`."""
