"""Fast passes over a fixed network on a CPU, with equal results. Private.

accelerate      a folded, channels-last copy of a frozen network, built once and reused while it is valid
channels_last   the memory layout in which convolutions on a CPU are fastest
thread_pool     threads that share torch's cores
"""

from trimtab._accel.accelerate import accelerate, channels_last
from trimtab._accel.threads import thread_pool

__all__ = ["accelerate", "channels_last", "thread_pool"]
