"""`python -m headwise` is `headwise`."""

from headwise.cli.app import main

if __name__ == "__main__":
    main()
