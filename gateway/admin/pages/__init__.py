"""The operator's pages: HTML, styles and small modules that a browser takes as they are. No build step.

`frame.html` is what the pages share, `dashboard.html` and `chat.html` are what is in it; each begins with the
module of its name. The other modules have one job each, and none of them knows the page that it is used on.
"""
