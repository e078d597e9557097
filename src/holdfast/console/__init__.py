"""The console: one web page that shows a running server, live.

    browser ──► / (page, script, style: no secrets, so no credential)
            ──► /api/v1/live (a picture each second) and the rest of the admin API, with the caller's credential

Promise: the page shows what the caller may see and nothing else, because it knows only what the API answers. Nobody
watching costs nothing: pictures are taken while somebody watches, once for all of them.

| file | purpose |
|---|---|
| attach.py | the page's routes on the admin server |
| picture.py | the running server as one value, and what of it one caller may see |
| live.py | the stream of pictures |

The page itself is in `static`: index.html, console.css, console.js.
"""

from holdfast.console.attach import attach

__all__ = ["attach"]
