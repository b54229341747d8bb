"""The arithmetic of the steered layer. Private to `norm`; whole passes over features are fused here.

moments   take, pool and apply moments, in vectors of one value per channel
groups    each group of images by its own moments: grouped, routed and shifted passes
shifted   one group under a constant shift, in half the steps
parts     blends, statistics that parts or processes share, and estimators of the user
"""
