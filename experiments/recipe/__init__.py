"""Does the whole recipe reach the accuracy of a plain one sooner?"""
