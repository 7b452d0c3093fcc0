"""`python -m sdjepa` is the command `sdjepa`."""

from sdjepa.cli import main

main()
