"""Does compression of gradients keep the accuracy?"""
