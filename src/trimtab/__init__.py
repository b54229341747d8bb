"""trimtab: the statistics of normalisation layers as a surface you can steer."""

__version__ = "0.1.0"
