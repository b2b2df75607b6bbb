"""`python -m edl` is `edl`."""

from .cli.main import main

if __name__ == "__main__":
    main()
