"""Docstrings are written to be read in a terminal; this makes Markdown of what Markdown would misread."""

import re

import griffe

ROLE = re.compile(r":(?:class|data|func|meth|attr|mod):`~?([^`]+)`")
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Extension(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found.group()}\n```", text)
