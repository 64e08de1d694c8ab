"""Does the size of batch-norm groups matter when the batch of each replica is small?"""
