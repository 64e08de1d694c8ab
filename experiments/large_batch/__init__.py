"""Does LARS hold accuracy as the batch grows, where SGD with momentum does not?"""
