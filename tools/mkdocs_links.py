"""A hook of MkDocs. Pages link to files outside docs/, such as ../../src/wire/wire.h, so that the links work in a checkout.
The site has no such files: it shows the names without links. A link to a file that does not exist is a warning, which
`mkdocs build --strict` turns into an error."""
import logging
import os
import posixpath
import re

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
log = logging.getLogger("mkdocs.plugins.links")


def on_page_markdown(markdown, page, config, files):
    root = os.path.dirname(config.config_file_path)
    folder = posixpath.dirname("docs/" + page.file.src_uri)

    def shorten(match):
        text, target = match.group(1), match.group(2)
        path = posixpath.normpath(posixpath.join(folder, target))
        if ":" in target or path.startswith("docs/"):
            return match.group(0)
        if not os.path.exists(os.path.join(root, path)):
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        return text if text.startswith("`") else "`%s`" % path
    return LINK.sub(shorten, markdown)
