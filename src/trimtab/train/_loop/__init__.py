"""The training loop of `train.fit`. Private: use the names that `trimtab.train` exports.

fit         begin or resume a run            loop        epochs and steps
saving      write, stop, diverge             start       processes, images, network
work        a run's state between steps      checkpoint  the state of a run on disk
runs        a run's folder                   plan        the cost of a run
validate    accuracy on held-out images      ema         the moving average
processes   means over several processes     callbacks   progress, TensorBoard, signals
"""
