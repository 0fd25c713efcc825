"""`python -m driftq` is `driftq`."""

from driftq.cli.main import main

if __name__ == "__main__":
    main()
