"""The README as a package index shows it: links and pictures lead to the repository. hatchling calls this."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/anyorder/anyorder/blob/main/"
PICTURES = "https://raw.githubusercontent.com/anyorder/anyorder/main/"


class Readme(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{PICTURES}", text)
        text = re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{PAGES}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
