"""Does bfloat16 keep the accuracy, and what does it save?"""
