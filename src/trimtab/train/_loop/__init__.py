"""The training loop of `train.fit`. Private: use the names that `trimtab.train` exports.

fit         begin or resume a run            loop        epochs and steps
work        a run's state between steps      start       processes, images, network
result      average, validation, choice      checkpoint  the state of a run on disk
runs        a run's folder                   plan        the cost of a run
callbacks   progress, TensorBoard, signals
"""
