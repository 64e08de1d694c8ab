"""Which variables an optimizer treats differently: regular expressions over variable names."""

import re

NORM_AND_BIAS = "norm_and_bias"
_NORM_AND_BIAS_NAMES = re.compile(r"(^|/)(bias|gamma|beta)(:\d+)?$")
_NAMES_SHOWN = 8


class Exclusion:
    """A list of expressions, each of which takes the variables whose names it matches.

    Args:
        argument: `str`, the argument's name in error messages.
        expressions: `None` (the same as `["norm_and_bias"]`), a regular expression or a list of
            them. The entry `"norm_and_bias"` stands for all that is called bias, gamma or beta
            and every variable of fewer than two dimensions.

    Raises:
        ValueError: if an expression is not a regular expression.
    """

    def __init__(self, argument, expressions):
        self._argument = argument
        self._expressions = []
        self._exact_counts = {}
        self._decided = None
        if expressions is None:
            expressions = [NORM_AND_BIAS]
        elif isinstance(expressions, str):
            # A string is a sequence of letters, each of which would match nearly every name.
            expressions = [expressions]
        self.add(expressions=expressions)

    def add(self, variables=(), expressions=()):
        """Adds expressions, and variables, which are remembered by their names."""
        try:
            expressions = list(expressions)
        except TypeError:
            raise ValueError(
                f"{self._argument} must be a regular expression or a list of them; "
                f"got {expressions!r}."
            ) from None
        for expression in expressions:
            self._check_expression(expression)
        exact = [f"^{re.escape(name_of(variable))}$" for variable in variables]
        for expression in exact:
            self._exact_counts[expression] = self._exact_counts.get(expression, 0) + 1
        self._expressions = list(dict.fromkeys(self._expressions + expressions + exact))

    def config(self):
        """Returns the list from which an equal `Exclusion` can be made."""
        return list(self._expressions)

    def excludes(self, variables):
        """Returns one `bool` per variable: whether it is excluded.

        Raises:
            ValueError: if an expression matches none of them.
        """
        excluded = [False] * len(variables)
        for expression in self._expressions:
            hits = [_matches(expression, variable) for variable in variables]
            self._check_hits(expression, sum(hits), variables)
            excluded = [old or new for old, new in zip(excluded, hits, strict=True)]
        self._decided = [
            name_of(variable) for variable, out in zip(variables, excluded, strict=True) if out
        ]
        return excluded

    def names(self, variables=None):
        """Returns the excluded ones' names, of `variables` or of those last decided on."""
        if variables is not None:
            self.excludes(variables)
        if self._decided is None:
            raise ValueError(
                "The optimizer has not met its variables yet: pass model.trainable_variables."
            )
        return list(self._decided)

    def _check_expression(self, expression):
        if not isinstance(expression, str):
            raise ValueError(
                f"{self._argument} must hold regular expressions (str); got {expression!r}."
            )
        if not expression:
            raise ValueError(
                f'{self._argument}: the expression "" would match every variable; '
                'write ".*" if all are to be excluded, and [] if none.'
            )
        try:
            re.compile(expression)
        except re.error as error:
            raise ValueError(
                f"{self._argument}: {expression!r} is not a regular expression: {error}."
            ) from None

    def _check_hits(self, expression, hits, variables):
        if hits == 0 and expression != NORM_AND_BIAS:
            raise ValueError(
                f"{self._argument}: {expression!r} matches none of the {len(variables)} trainable "
                f"variables ({listed(name_of(variable) for variable in variables)}). "
                "Correct it or leave it out."
            )
        expected = self._exact_counts.get(expression, hits)
        if hits > expected:
            raise ValueError(
                f"{self._argument}: {expected} variable(s) named {expression[1:-1]!r} were to be "
                f"excluded, but {hits} have that name. Give them different names."
            )


def name_of(variable):
    """Returns the name that expressions are matched against, such as `"conv1/kernel:0"`."""
    return getattr(variable, "path", None) or variable.name


def listed(names):
    """Returns the first few names in one line, and how many more there are."""
    names = list(names)
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _matches(expression, variable):
    name = name_of(variable)
    if expression == NORM_AND_BIAS:
        rank = variable.shape.rank
        return (rank is not None and rank < 2) or bool(_NORM_AND_BIAS_NAMES.search(name))
    # "bias$" is meant to match "dense/bias:0": the number of the output is no part of the name.
    return bool(re.search(expression, name) or re.search(expression, name.rsplit(":", 1)[0]))
