"""`python -m bert4rec` is `bert4rec`."""

from bert4rec.cli import main

if __name__ == "__main__":
    main()
