"""Let `python -m driftq` run the same program as `driftq`."""

from driftq.cli.main import main

if __name__ == "__main__":
    main()
