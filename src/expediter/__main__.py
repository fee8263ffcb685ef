"""`python -m expediter` is `expediter`."""

from expediter.cli import main

main()
