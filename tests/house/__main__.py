"""`python -m tests.house` prints the measures of the house."""

from tests.house import main

main()
