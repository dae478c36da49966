"""Tests that are coroutines on a stage."""

import functools
import inspect


def played(play, **settings):
    """Decorator: the test is a coroutine that gets a stage; its other arguments are fixtures and parameters, as usual.

    Args:
        play: runs a coroutine on a stage in a temporary folder: ``play(body, tmp_path, **settings)``.
        settings: of the stage.
    """

    def decorate(body):
        _, *others = inspect.signature(body).parameters
        names = dict.fromkeys(["tmp_path", *others])

        @functools.wraps(body)
        def test(**given):
            asked = {name: given[name] for name in others}
            play(lambda stage: body(stage, **asked), given["tmp_path"], **settings)

        del test.__wrapped__  # pytest would look for fixtures there
        test.__signature__ = inspect.Signature(
            [inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY) for one in names]
        )
        return test

    return decorate
