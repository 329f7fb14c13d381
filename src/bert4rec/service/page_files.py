"""The files of the page, as they lie in the package."""

import mimetypes
from importlib.resources import files

_SAFE = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# The page fetches from here and from nowhere else, and nobody may frame it.
PAGE_HEADERS = {
    **_SAFE,
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
}
DOCS_HEADERS = {**_SAFE, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def page_files() -> dict[str, tuple[bytes, str]]:
    """Path → content and media type: page/app.js is at /app.js, and page/index.html at / as well.

    A fixed list, made once: what is not in it cannot be asked for, whatever a path says.
    """
    folder = files("bert4rec.service") / "page"
    if not folder.is_dir():
        return {}
    found = {}
    for file in folder.iterdir():
        media_type = mimetypes.guess_type(file.name)[0]
        if file.is_file() and media_type and not file.name.startswith((".", "_")):
            charset = "; charset=utf-8" if media_type.startswith("text/") else ""
            found[f"/{file.name}"] = (file.read_bytes(), media_type + charset)
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found
