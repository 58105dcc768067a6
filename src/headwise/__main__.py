"""`python -m headwise` is `headwise`."""

from headwise.cli import main

if __name__ == "__main__":
    main()
