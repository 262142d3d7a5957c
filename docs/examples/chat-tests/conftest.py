"""What the tests of this example share: a page in a browser, where there is one."""

import shutil

import pytest

pytest.importorskip  # noqa: B018
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
