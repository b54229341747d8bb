"""A frozen network as a straight line of operations: forwards, and backwards to its images.

operations  what a line is made of, each with its gradient
reading     from a trace to the steps of a line
writing     from the steps to Python
line        the network that runs it, and the trial it must stand
"""

from trimtab.straight.line import Straight, proven, pulled, straightened

__all__ = ["Straight", "proven", "pulled", "straightened"]
