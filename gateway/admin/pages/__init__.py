"""The operators' pages: HTML, CSS and small JavaScript modules that browsers load without a build step.

Both pages share `frame.html`; `dashboard.html` and `chat.html` are the content that is put into it. Each page
starts the module of its name. Every other module has one job and does not know which page uses it.
"""
