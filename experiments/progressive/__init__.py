"""Is the same accuracy there sooner when the pictures grow in the course of the training?"""
