"""`python -m fusestripe` is the command `fusestripe`."""

from fusestripe.cli import main

if __name__ == "__main__":
    main()
