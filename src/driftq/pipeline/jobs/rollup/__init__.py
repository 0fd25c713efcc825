"""Job `rollup`."""
