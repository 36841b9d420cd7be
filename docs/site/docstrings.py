"""Docstrings are written to be read in a terminal; this makes Markdown of what Markdown would misread."""

import re

import griffe

ROLE = re.compile(r":(?:class|data|func|meth|attr|mod):`~?([^`]+)`")
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
CODE = re.compile(r"(```.*?```|`+[^`]*`+)", re.DOTALL)
INDEX = re.compile(r"(?<!\w)([^\W\d_]'?)_(?:\{([^}]*)\}|(\w[\u0300-\u036f]*)(?!\w))")  # of s_t and s_{t−1}


class Extension(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            parts = CODE.split(EXAMPLE.sub(lambda found: f"```pycon\n{found.group()}\n```", text))
            parts[::2] = [INDEX.sub(r"\1<sub>\2\3</sub>", part) for part in parts[::2]]
            obj.docstring.value = "".join(parts)
