"""Fast passes over a fixed network on a CPU, with equal results. Private.

accelerate      a folded, channels-last copy of a frozen network, built once and reused while it is valid
recall, note    the copy that is there already, and what was found out about the model
channels_last   the memory layout in which convolutions on a CPU are fastest
thread_pool     threads that share torch's cores
"""

from trimtab._accel.accelerate import accelerate, channels_last, note, recall
from trimtab._accel.threads import thread_pool

__all__ = ["accelerate", "channels_last", "note", "recall", "thread_pool"]
