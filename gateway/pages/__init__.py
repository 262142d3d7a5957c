"""The operator's pages: HTML, styles and small modules that a browser takes as they are. No build step.

`dashboard.html` and `chat.html` are the pages; each begins with the module of its name. The other modules
have one job each, and none of them knows the page that it is used on.
"""
